"""A real nats-server with JetStream on a free port, that a test can kill and start again with the same store."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleetctl.pool import wire

PROGRAM = shutil.which("nats-server") or ("/usr/sbin/nats-server" if Path("/usr/sbin/nats-server").exists() else None)
needs_nats = pytest.mark.skipif(PROGRAM is None, reason="nats-server is not installed")

CONFIG = """
host: 127.0.0.1
port: {port}
jetstream {{ store_dir: "{store}", max_file_store: 2GB, max_memory_store: 64MB }}
{more}
"""


class NatsServer:
    """One server; ``url`` stays the same when it is started again."""

    def __init__(self, folder: Path, more: str = "") -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self.access = wire.NatsAccess((self.url,))
        self.process: subprocess.Popen[bytes] | None = None
        self.config = folder / "nats.conf"
        self.config.write_text(CONFIG.format(port=self.port, store=folder / "store", more=more))

    def start(self) -> None:
        """Starts it and waits until it listens."""
        assert PROGRAM
        with (self.folder / "nats.log").open("ab") as log:
            self.process = subprocess.Popen([PROGRAM, "-c", str(self.config)], stdout=log, stderr=log)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self.process.poll() is None, (self.folder / "nats.log").read_text()
            time.sleep(0.02)
        raise AssertionError("nats-server does not listen")

    def stop(self, how: int = signal.SIGTERM) -> None:
        """Ends it; SIGKILL leaves its store as a power cut of the program would."""
        if self.process:
            self.process.send_signal(how)
            self.process.wait(20)
            self.process = None


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(folder: Path, more: str = "") -> Iterator[NatsServer]:
    """A server for the length of a with block."""
    server = NatsServer(folder, more)
    server.start()
    try:
        yield server
    finally:
        server.stop(signal.SIGKILL)
