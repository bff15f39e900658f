"""What stands between clients and engines in `bench/pool.py`: routers, HAProxy, and the pool.

Each is one process of its kind (the pool: one gateway, one nats-server and a worker for each box) with the threads
that it takes by itself, and is ended by the bench. All keep their connections to the engines.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from _common import CHECKOUT, BenchError, environment, make_venv, version_of
from _engines import free_port
from _pool_load import Engines

START = 30.0  # seconds that anything may take to answer
POLICIES = {
    "vllm-router": ("round_robin", "cache_aware", "power_of_two", "sticky_least_loaded"),
    "sglang-router": ("round_robin", "cache_aware", "power_of_two"),
}
"""Policies of the routers. Without a client's key consistent_hash, manual and random are all blind. cache_aware with
``--balance-abs-threshold 0 --balance-rel-threshold 1.0`` was tried too: as good as it is by default."""

HAPROXY = """# One thread: with several each picks by what it knows of the others, and this traffic needs one at most.
global
    nbthread 1
    maxconn 4000
    stats socket {folder}/stats mode 600
defaults
    mode http
    option http-keep-alive
    http-reuse always
    timeout connect 5s
    timeout client 120s
    timeout server 120s
    timeout queue 120s
    retries 3
    option redispatch
frontend clients
    bind 127.0.0.1:{port}
    default_backend engines
backend engines
    balance leastconn
{servers}
"""


@dataclass
class Process:
    """One that runs, in a session of its own."""

    popen: subprocess.Popen[bytes]
    log: Path

    @property
    def session(self) -> int:
        """By which its processes are known."""
        return self.popen.pid

    def send(self, number: signal.Signals) -> None:
        """A signal to all of its processes."""
        os.killpg(self.popen.pid, number)

    def kill(self) -> None:
        """All of its processes are gone, at once."""
        self.send(signal.SIGKILL)
        self.popen.wait()

    @property
    def said(self) -> str:
        """Its last words."""
        return self.log.read_text(errors="replace")[-2000:]


@contextmanager
def process(argv: Sequence[str], log: Path, **more: str) -> Iterator[Process]:
    """It runs; at the end of the block it is ended."""
    with log.open("ab") as file:
        popen = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=environment(**more),
            start_new_session=True,
        )
    one = Process(popen, log)
    try:
        yield one
    finally:
        if popen.poll() is None:
            one.send(signal.SIGCONT)
            popen.terminate()
            try:
                popen.wait(3)
            except subprocess.TimeoutExpired:
                one.kill()


def await_answer(one: Process, url: str, body: bytes | None = None) -> None:
    """Wait until a URL answers 200. Raises BenchError with the last words of what does not."""
    end = time.monotonic() + START
    while not _answers(url, body):
        if one.popen.poll() is not None or time.monotonic() > end:
            raise BenchError(f"`{' '.join(map(str, one.popen.args))}` does not answer at {url}:\n{one.said}")  # type: ignore[arg-type]
        time.sleep(0.05)


def _answers(url: str, body: bytes | None) -> bool:
    asked = urllib.request.Request(url, body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextmanager
def engines(folder: Path, boxes: int, of_each: int, batch: int, pace: float) -> Iterator[tuple[Engines, list[Process]]]:
    """Stand-in engines: one process for each box."""
    with ExitStack() as running:
        ports, processes = [], []
        for number in range(boxes):
            own = [free_port() for _ in range(of_each)]
            argv = [
                sys.executable,
                str(CHECKOUT / "bench/_pool_engines.py"),
                "--batch",
                str(batch),
                "--pace",
                str(pace),
            ]
            argv += [word for port in own for word in ("--engine", str(port))]
            one = running.enter_context(process(argv, folder / f"engines-{number}.log"))
            for port in own:
                await_answer(one, f"http://127.0.0.1:{port}/health")
            ports += own
            processes.append(one)
        yield Engines(tuple(ports), batch, pace, tuple(one.session for one in processes)), processes


@dataclass(frozen=True)
class Served:
    """Something answers at ``url``; these are its processes."""

    url: str
    processes: tuple[Process, ...]

    @property
    def sessions(self) -> tuple[int, ...]:
        """Of all of its processes."""
        return tuple(one.session for one in self.processes)


@dataclass(frozen=True)
class Contender:
    """One way to the engines. ``setting`` is what was chosen for it: a policy, or a limit. ``begin``: the share of the
    capacity at which its search begins, which decides how long that takes; None: where the one before was found."""

    name: str
    setting: str
    serve: Callable[[Engines, Path], AbstractContextManager[Served]]
    begin: float | None = None

    @property
    def key(self) -> str:
        """For figures: no version, no setting."""
        return "_".join(word for word in self.name.lower().split() if not word[0].isdigit())

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.name} ({self.setting})" if self.setting else self.name


def routers(folder: Path, installed: Path | None) -> dict[str, Path]:
    """The routers' programs by name with version: those in a bin folder, or installed below ``folder``."""
    binaries = installed or make_venv(folder / "routers", *POLICIES)
    return {f"{name} {version_of(binaries, name)}": binaries / name for name in POLICIES}


def router(name: str, program: Path, policy: str) -> Contender:
    """One of the routers with one of its policies; everything else as it comes."""

    @contextmanager
    def serve(behind: Engines, folder: Path) -> Iterator[Served]:
        port = free_port()
        argv = [str(program), *(["launch"] if program.name == "sglang-router" else [])]
        argv += ["--host", "127.0.0.1", "--port", str(port), "--policy", policy]
        argv += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
        argv += ["--log-level", "warning" if program.name == "vllm-router" else "warn"]
        argv += ["--worker-startup-check-interval", "1", "--worker-urls", *behind.urls]
        with process(argv, folder / f"{program.name}.log") as one:
            await_answer(one, f"http://127.0.0.1:{port}/v1/models")
            time.sleep(0.5)  # some of them take their engines in one after the other
            yield Served(f"http://127.0.0.1:{port}", (one,))

    return Contender(name, policy, serve)


def haproxy(name: str, most: int | None) -> Contender:
    """HAProxy with leastconn; ``most`` requests at an engine, others wait in one queue (None: no limit, no queue)."""
    program = shutil.which("haproxy")
    if program is None:
        raise BenchError("haproxy is not installed: apt-get install haproxy")

    @contextmanager
    def serve(behind: Engines, folder: Path) -> Iterator[Served]:
        port = free_port()
        limit = f" maxconn {most}" if most else ""
        servers = "\n".join(f"    server e{port} 127.0.0.1:{port}{limit}" for port in behind.ports)
        file = folder / "haproxy.cfg"
        file.write_text(HAPROXY.format(folder=folder, port=port, servers=servers))
        with process([program, "-db", "-f", str(file)], folder / "haproxy.log") as one:
            await_answer(one, f"http://127.0.0.1:{port}/v1/models")
            yield Served(f"http://127.0.0.1:{port}", (one,))

    return Contender(name, f"maxconn {most}" if most else "", serve)
