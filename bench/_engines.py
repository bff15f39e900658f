"""Stand-in engines on the loopback interface, for scripts that need no box."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from _common import CHECKOUT
from _serving import answers, serving

VLLM = CHECKOUT / "fleetctl/lab/standin/bin/vllm"
MODEL = "lab/model"


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
    with serving(argv, answers(f"{engine.url}/health"), STANDIN_CONTROL=str(engine.control), **environment):
        yield engine
