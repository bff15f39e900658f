"""A way from the operator's SSH connection to a Unix socket that only root may open.

sshd opens sockets as the user who has logged in, who need not be root. So the program, which is, listens on a port of
the loopback interface for as long as the way is needed, and carries bytes between the connections that come there
through SSH and the socket. Any user of the box can connect to that port: each connection first proves that it knows the
key of this way, and is shown in return that it has reached the one that was meant.
"""

import contextlib
import hmac
import socket
import threading
import time
from typing import Any, Dict, Set

from fleetctl.onbox.main import Call, OpError, op

HERE = "127.0.0.1"  # sshd of this box connects
KEY = 64  # characters of each key
GREETING_WAIT = 5.0  # seconds to show the key
CONNECT_WAIT = 5.0  # seconds for the engine to take the connection
LOOK_EVERY = 0.2
PIECE = 65536
OVER = b"x"  # in place of a connection: nobody needs the way any more


@op("socket_relay")
def socket_relay(call: Call, path: str, key: str, reply: str) -> Dict[str, Any]:
    """Tell a ``port`` as an event, and carry bytes from there to the socket ``path`` until a connection says OVER.

    A connection sends ``key`` and one byte more, and hears ``reply`` once it leads to the socket. It is closed without
    a word if the key is wrong, or nobody listens at the socket. ``count``: connections that were made.
    """
    if len(key) != KEY or len(reply) != KEY:
        raise OpError("a way to a socket needs two keys of %d characters" % KEY)
    way = _Way(path, key.encode(), reply.encode())
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.bind((HERE, 0))
        listener.listen(64)
        listener.settimeout(LOOK_EVERY)
        call.event(port=listener.getsockname()[1])
        while not way.over.is_set():
            call.check()
            try:
                near, _ = listener.accept()
            except socket.timeout:
                continue
            threading.Thread(target=way.take, args=(near,), daemon=True).start()
    finally:
        listener.close()
        way.close()
    return {"count": way.count}


class _Way:
    """The connections of one way."""

    def __init__(self, path: str, key: bytes, reply: bytes) -> None:
        self.over = threading.Event()
        self.count = 0
        self._path, self._key, self._reply = path, key, reply
        self._open: Set[socket.socket] = set()

    def take(self, near: socket.socket) -> None:
        """One connection, until both of its ends are done."""
        far = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._open.update((near, far))
        try:
            with near, far, contextlib.suppress(OSError):
                verb = self._verb(near)
                if verb == OVER:
                    self.over.set()
                if verb != b"c":
                    return
                far.settimeout(CONNECT_WAIT)
                far.connect(self._path)
                far.settimeout(None)
                near.settimeout(None)
                self.count += 1
                near.sendall(self._reply)
                back = threading.Thread(target=_carry, args=(far, near), daemon=True)
                back.start()
                _carry(near, far)
                back.join()
        finally:
            self._open.difference_update((near, far))

    def close(self) -> None:
        """Cut off what is left."""
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _verb(self, near: socket.socket) -> bytes:
        """What a connection wants; empty for one that does not know the key."""
        end, said = time.monotonic() + GREETING_WAIT, b""
        while len(said) < KEY + 1:
            near.settimeout(max(0.01, end - time.monotonic()))
            piece = near.recv(KEY + 1 - len(said))
            if not piece:
                return b""
            said += piece
        return said[KEY:] if hmac.compare_digest(said[:KEY], self._key) else b""


def _carry(source: socket.socket, goal: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            data = source.recv(PIECE)
            if not data:
                break
            goal.sendall(data)
    with contextlib.suppress(OSError):
        goal.shutdown(socket.SHUT_WR)
