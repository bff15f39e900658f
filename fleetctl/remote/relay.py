"""Bytes carried between two sockets of this machine, until both ends are done."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

PIECE = 2**18


def relay(one: Path, other: Path) -> int:
    """Connect to two Unix sockets and carry bytes both ways; how many went from the first to the second.

    It returns when both ends have said all they had to say, or are gone: what they were told shows there.
    """
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as first,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as second,
    ):
        try:
            first.connect(str(one))
            second.connect(str(other))
        except OSError:
            return 0
        back = threading.Thread(target=_carry, args=(second, first), daemon=True)
        back.start()
        carried = _carry(first, second)
        back.join()
    return carried


def _carry(source: socket.socket, goal: socket.socket) -> int:
    carried = 0
    with contextlib.suppress(OSError):
        while data := source.recv(PIECE):
            goal.sendall(data)
            carried += len(data)
    with contextlib.suppress(OSError):
        goal.shutdown(socket.SHUT_WR)
    return carried
