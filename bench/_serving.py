"""A server for the length of a block: it is started, has to serve in time, and is ended."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from _common import BenchError, environment

Address = Path | tuple[str, int]
"""A Unix socket, or host and port."""


@contextmanager
def serving(
    argv: Sequence[str], serves: Callable[[], bool], *, limit: float = 30.0, log: Path | None = None, **more: str
) -> Iterator[int]:
    """A server, by its process, once ``serves``; ``more`` is added to its environment.

    Raises BenchError, with the end of its ``log``, when it ends before or takes longer than ``limit`` seconds.
    """
    with (log or Path("/dev/null")).open("w") as file:
        process = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment(**more)
        )
    try:
        end = time.monotonic() + limit
        while not serves():
            if process.poll() is not None or time.monotonic() > end:
                said = f":\n{log.read_text()[-2000:]}" if log else ""
                raise BenchError(f"`{' '.join(argv)}` does not serve{said}")
            time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def answers(url: str) -> Callable[[], bool]:
    """Whether a URL is answered with 200."""

    def is_answered() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    return is_answered


def listens(address: Address) -> Callable[[], bool]:
    """Whether somebody listens there."""

    def is_listening() -> bool:
        try:
            connect(address).close()
        except OSError:
            return False
        return True

    return is_listening


def connect(address: Address) -> socket.socket:
    """A connection there. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET)
    try:
        sock.connect(str(address) if isinstance(address, Path) else address)
    except OSError:
        sock.close()
        raise
    return sock
