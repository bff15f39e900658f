"""A way to a Unix socket of a box that only root may open: the program there, which is root, leads to it.

See ``fleetctl/onbox/relay.py``, which has the other half.
"""

from __future__ import annotations

import contextlib
import hmac
import queue
import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any

from fleetctl.errors import BoxError, FleetError
from fleetctl.remote.library import paramiko
from fleetctl.remote.tunnel import Reach

_HERE = "127.0.0.1"
_OPENING = 10.0  # seconds for the box to reach the socket
_PORT_WAIT = 30.0  # seconds until the program listens
_CONNECT, _OVER = b"c", b"x"


@contextlib.contextmanager
def way_to(
    box: str,
    call: Callable[..., Any],
    port_of: Callable[[str, int], Reach],
    path: str,
) -> Iterator[Reach]:
    """Yield what opens channels to the socket ``path``; the way is closed with the block. Raises BoxError.

    ``call`` runs an op on the box, ``port_of`` gives channels to a port as seen from it.
    """
    key, reply = secrets.token_hex(32), secrets.token_hex(32)
    said: queue.SimpleQueue[int | FleetError] = queue.SimpleQueue()

    def serve() -> None:
        try:
            call("socket_relay", path=path, key=key, reply=reply, on_event=lambda event: said.put(int(event["port"])))
        except FleetError as error:
            said.put(error)

    thread = threading.Thread(target=serve, name=f"{box}-way", daemon=True)
    thread.start()
    try:
        port = said.get(timeout=_PORT_WAIT)
    except queue.Empty:
        raise BoxError(box, f"no way to {path} within {_PORT_WAIT:g} s") from None
    if isinstance(port, FleetError):
        raise port
    reach = port_of(_HERE, port)
    try:
        yield lambda: _greeted(reach(), key, reply)
    finally:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException), reach() as channel:
            channel.sendall(key.encode() + _OVER)
            thread.join(_OPENING)


def _greeted(channel: paramiko.Channel, key: str, reply: str) -> paramiko.Channel:
    """The channel, once it leads to the socket. Raises OSError if it does not."""
    try:
        channel.settimeout(_OPENING)
        channel.sendall(key.encode() + _CONNECT)
        heard = b""
        while len(heard) < len(reply):
            piece = channel.recv(len(reply) - len(heard))
            if not piece:
                raise ConnectionRefusedError("nobody listens at the socket")
            heard += piece
        if not hmac.compare_digest(heard, reply.encode()):
            raise ConnectionRefusedError("the port of the way is somebody else's")
        channel.settimeout(None)
    except BaseException:
        channel.close()
        raise
    return channel
