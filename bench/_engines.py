"""Stand-in engines on the loopback interface, for scripts that need no box."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from _common import CHECKOUT, BenchError

VLLM = CHECKOUT / "fleetctl/lab/standin/bin/vllm"
MODEL = "lab/model"
START = 30.0  # seconds that an engine may take to serve


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody uses now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@dataclass
class Engine:
    """One that serves. ``control`` is its file of settings."""

    port: int
    control: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def set(self, **settings: object) -> None:
        """Settings from now on."""
        new = self.control.with_suffix(".new")
        new.write_text(json.dumps(settings))
        new.replace(self.control)


@contextmanager
def standin(folder: Path, *arguments: str, **settings: object) -> Iterator[Engine]:
    """A stand-in engine that is ready; ``settings`` are those of fleetctl.lab.standin."""
    port = free_port()
    engine = Engine(port, folder / f"standin-{port}.json")
    engine.set()
    environment = {f"STANDIN_{name.upper()}": json.dumps(value) for name, value in settings.items()}
    argv = [sys.executable, str(VLLM), "serve", MODEL, "--host", "127.0.0.1", "--port", str(port), *arguments]
    with serving(argv, f"{engine.url}/health", STANDIN_CONTROL=str(engine.control), **environment):
        yield engine


@contextmanager
def serving(argv: Sequence[str], health: str, **environment: str) -> Iterator[None]:
    """A server that answers at ``health``; it is ended with the block."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(list(argv), stdin=quiet, stdout=quiet, stderr=quiet, env={**os.environ, **environment})
    try:
        deadline = time.monotonic() + START
        while not _answers(health):
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchError(f"`{' '.join(argv)}` does not serve")
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(10)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False
