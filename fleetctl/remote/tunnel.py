"""A Unix socket on the operator's machine that leads to a port, or to a Unix socket, of a box."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from fleetctl.errors import BoxError
from fleetctl.remote.library import paramiko

_LONGEST = 100  # bytes that a path of a Unix socket may have, with a few to spare
_OPENING = 10.0  # seconds for the box to reach the port


Reach = Callable[[], paramiko.Channel]
"""Opens a channel to the far end. Raises OSError, EOFError or SSHException."""


def port_of(transport: paramiko.Transport, host: str, port: int) -> Reach:
    """Channels to ``host:port`` as seen from the box."""
    return lambda: transport.open_channel("direct-tcpip", (host, port), ("127.0.0.1", 0), timeout=_OPENING)


@contextlib.contextmanager
def tunnel(box: str, reach: Reach, goal: str) -> Iterator[Path]:
    """Yield the socket's path, in a folder that only the operator can enter; it ends with the block. ``goal`` names
    the far end.

    Any number of connections may be open at once. One that the box cannot make is closed at once.
    """
    folder = Path(tempfile.mkdtemp(prefix="fleetctl-"))
    if len(os.fsencode(folder)) > _LONGEST - 2:  # TMPDIR can be anywhere
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="fleetctl-", dir="/tmp"))
    path = folder / "s"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    open_now: set[socket.socket] = set()
    try:
        listener.bind(str(path))
        listener.listen(64)
        threading.Thread(
            target=_accept,
            args=(listener, reach, open_now),
            name=f"{box}-tunnel",
            daemon=True,
        ).start()
        yield path
    except OSError as error:
        raise BoxError(box, f"tunnel to {goal}: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes accept, which close alone does not
        listener.close()
        for near in list(open_now):
            with contextlib.suppress(OSError):
                near.shutdown(socket.SHUT_RDWR)
        shutil.rmtree(folder, ignore_errors=True)


def _accept(listener: socket.socket, reach: Reach, open_now: set[socket.socket]) -> None:
    while True:
        try:
            near, _ = listener.accept()
        except OSError:
            return
        open_now.add(near)
        threading.Thread(target=_join, args=(near, reach, open_now), daemon=True).start()


def _join(near: socket.socket, reach: Reach, open_now: set[socket.socket]) -> None:
    """Carry bytes both ways until both sides are done."""
    try:
        with near:
            far = reach()
            back = threading.Thread(target=_carry_back, args=(far, near), daemon=True)
            back.start()
            try:
                while data := near.recv(65536):
                    far.sendall(data)
                far.shutdown_write()
                back.join()
            finally:
                far.close()
    except (OSError, EOFError, paramiko.SSHException):
        return  # this connection is over; the program at the near end sees it close
    finally:
        open_now.discard(near)


def _carry_back(far: paramiko.Channel, near: socket.socket) -> None:
    with contextlib.suppress(OSError, EOFError):
        while data := far.recv(65536):
            near.sendall(data)
    with contextlib.suppress(OSError):
        near.shutdown(socket.SHUT_WR)
