"""The programs of a pool on this machine, for `bench/pool.py`: nats-server, gateways, and a worker for each box."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from _common import CHECKOUT, BenchError
from _engines import free_port
from _pool_contenders import Contender, Process, Served, await_answer, process
from _pool_engines import MODEL
from _pool_load import Engines, request

from fleetctl.pool import wire

NATS = """listen: 127.0.0.1:{port}
http: 127.0.0.1:{monitor}
jetstream {{ store_dir: "{folder}/jetstream", max_file_store: 1GB }}
"""
SYSTEMCTL = """#!/bin/sh
# The engines here are no units: they run, whatever is asked.
echo active
"""


@dataclass(frozen=True)
class Program:
    """A program of the pool that can be started, with what it is told."""

    argv: tuple[str, ...]
    log: Path
    ready: str
    path: str
    """Where it finds systemctl."""

    def start(self) -> AbstractContextManager[Process]:
        """It runs; it may not be ready yet."""
        return process(self.argv, self.log, PYTHONPATH=str(CHECKOUT), PATH=self.path)


def nats(folder: Path, port: int) -> Program:
    """nats-server with JetStream below ``folder``, without passwords, on the loopback interface."""
    program = shutil.which("nats-server")
    if program is None:
        raise BenchError("nats-server is not installed: apt-get install nats-server")
    monitor = free_port()
    file = folder / "nats.conf"
    file.write_text(NATS.format(folder=folder, port=port, monitor=monitor))
    ready = f"http://127.0.0.1:{monitor}/healthz"
    return Program((program, "-c", str(file)), folder / "nats.log", ready, "/usr/sbin:/usr/bin:/sbin:/bin")


def gateway(folder: Path, name: str, access: wire.NatsAccess) -> tuple[Program, str]:
    """A gateway, and its URL."""
    listen = wire.Listen("127.0.0.1", free_port())
    models = (wire.PoolModel(MODEL, "embed", (MODEL,), limit=10_000),)
    config = wire.GatewayConfig(name, access, listen, models)
    url = f"http://127.0.0.1:{listen.port}"
    return _python(folder, f"gateway-{name}", "fleetctl.pool.gateway", config, f"{url}/v1/models"), url


@dataclass(frozen=True)
class Settings:
    """How workers use engines. Requests of tasks other than ``embed`` are never merged into one call."""

    task: str
    concurrency: int
    batch_tokens: int


def merged(batch: int) -> Settings:
    """Calls with as many inputs as an engine takes at once; these engines do not count tokens."""
    return Settings("embed", batch, 1 << 20)


def unmerged(calls: int) -> Settings:
    """One input in each call, so many calls at an engine."""
    return Settings("rerank", calls, 1 << 20)


def worker(folder: Path, box: str, access: wire.NatsAccess, ports: Sequence[int], settings: Settings) -> Program:
    """The worker of a box, in front of its engines."""
    listen = wire.Listen("127.0.0.1", free_port())
    engines = tuple(
        wire.PoolEngine(
            MODEL,
            settings.task,
            (MODEL,),
            unit=f"engine-{port}.service",
            address=f"http://127.0.0.1:{port}",
            pinned=True,
            concurrency=settings.concurrency,
            batch_tokens=settings.batch_tokens,
        )
        for port in ports
    )
    config = wire.WorkerConfig(box, access, listen, memory=1 << 30, engines=engines)
    return _python(folder, f"worker-{box}", "fleetctl.pool.worker", config, f"http://127.0.0.1:{listen.port}/health")


def _python(
    folder: Path, name: str, module: str, config: wire.GatewayConfig | wire.WorkerConfig, ready: str
) -> Program:
    file = folder / f"{name}.json"
    file.write_text(json.dumps(wire.as_json(config)))
    return Program(
        (sys.executable, "-m", module, str(file)),
        folder / f"{name}.log",
        ready,
        f"{folder / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin",
    )


def prepare(folder: Path) -> None:
    """Where the programs find systemctl."""
    (folder / "bin").mkdir(exist_ok=True)
    file = folder / "bin/systemctl"
    file.write_text(SYSTEMCTL)
    file.chmod(0o755)


def boxes(behind: Engines) -> list[tuple[str, tuple[int, ...]]]:
    """The boxes by name, each with the ports of its engines."""
    each = len(behind.ports) // len(behind.sessions)
    return [
        (f"box{number + 1}", behind.ports[number * each : (number + 1) * each])
        for number in range(len(behind.sessions))
    ]


def pool(setting: str, settings: Settings) -> Contender:
    """The pool: one gateway, one nats-server, a worker for each box."""

    @contextmanager
    def serve(behind: Engines, folder: Path) -> Iterator[Served]:
        own = folder / "pool"
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir()
        prepare(own)
        port = free_port()
        access = wire.NatsAccess((f"nats://127.0.0.1:{port}",))
        with ExitStack() as running:
            entry, url = gateway(own, "g1", access)
            programs = [nats(own, port), entry]
            programs += [worker(own, box, access, ports, settings) for box, ports in boxes(behind)]
            processes = []
            for program in programs:
                processes.append(running.enter_context(program.start()))
                await_answer(processes[-1], program.ready)
            await_answer(processes[1], f"{url}/v1/embeddings", request(0.002).body)
            yield Served(url, tuple(processes))

    return Contender("pool", setting, serve, begin=0.9)
