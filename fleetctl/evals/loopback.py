"""A port of this machine that leads to a Unix socket, for programs that take nothing but an address."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def loopback(path: Path) -> Iterator[str]:
    """The URL of a free port of 127.0.0.1 that leads to the socket as long as the block lasts."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        open_now: set[socket.socket] = set()
        threading.Thread(target=_accept, args=(listener, path, open_now), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes accept, which close alone does not
            for near in list(open_now):
                with contextlib.suppress(OSError):
                    near.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, path: Path, open_now: set[socket.socket]) -> None:
    while True:
        try:
            near, _ = listener.accept()
        except OSError:
            return
        open_now.add(near)
        threading.Thread(target=_join, args=(near, path, open_now), daemon=True).start()


def _join(near: socket.socket, path: Path, open_now: set[socket.socket]) -> None:
    """Carry bytes both ways until both sides are done."""
    try:
        with near, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as far:
            far.connect(str(path))
            back = threading.Thread(target=_carry, args=(far, near), daemon=True)
            back.start()
            _carry(near, far)
            back.join()
    except OSError:
        return  # this connection is over; the program at the near end sees it close
    finally:
        open_now.discard(near)


def _carry(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
