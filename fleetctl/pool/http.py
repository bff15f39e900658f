"""A small HTTP/1.1 server on llhttp (httptools): keep-alive, bodies read in pieces, answers whole or streamed.

The programs of a pool serve with it, on a port or a Unix socket. A *handler* gets one :class:`Exchange` per request as
soon as its head is read, reads the body or leaves it, and answers once. One task per request; nothing else is made for
it. What the client still sends after an answer that did not want the body is thrown away for a moment, so that the
answer reaches it, and the connection is closed.

Limits: heads of 64 KiB, which have to come within :data:`HEAD` seconds; connections without a request are closed after
:data:`IDLE` seconds; a body is read from the socket only as fast as the handler takes it, but for 256 KiB.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path

from fleetctl.pool.connection import Connection, Handler
from fleetctl.pool.exchange import JSON, BodyTooLongError, ClientGoneError, Exchange

__all__ = ["JSON", "BodyTooLongError", "ClientGoneError", "Exchange", "Handler", "Server"]

RECEIVED = 64 << 10
"""Bytes that a connection receives at once, about: long bodies come in pieces that hold nobody up."""
HEAD = 15.0
"""Seconds for a request's head, from its first byte, and for the first one of a connection."""
IDLE = 75.0
"""Seconds after which a connection is closed on which nothing is asked. HAProxy closes its own long before."""


class Server:
    """A program's listening socket and its connections."""

    def __init__(self, handler: Handler, head: float = HEAD, idle: float = IDLE) -> None:
        self.handler = handler
        self._head, self._idle = head, idle
        self._look: asyncio.TimerHandle | None = None
        self.connections: set[Connection] = set()
        self.stopping = False
        self._listener: asyncio.AbstractServer | None = None
        self._empty = asyncio.Event()

    async def listen(self, host: str, port: int) -> int:
        """Listen on a TCP port (0: any that is free); the port. Raises OSError."""
        self._look_later()
        self._listener = await asyncio.get_running_loop().create_server(self._accept, host, port, backlog=4096)
        for one in self._listener.sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVED)  # connections inherit it
        return int(self._listener.sockets[0].getsockname()[1])

    async def listen_unix(self, path: Path) -> None:
        """Listen on a Unix socket; who may connect is said by its folder and the umask. Raises OSError."""
        self._look_later()
        path.unlink(missing_ok=True)
        self._listener = await asyncio.get_running_loop().create_unix_server(self._accept, str(path), backlog=4096)

    async def stop(self, grace: float) -> int:
        """Take no more connections, and let what is at work finish for ``grace`` seconds; how many had to be cut."""
        self.stopping = True
        if self._look is not None:
            self._look.cancel()
        if self._listener is not None:
            self._listener.close()
        for connection in list(self.connections):
            connection.close_idle()
        if self.connections:
            self._empty.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), grace)
        left = list(self.connections)
        for connection in left:
            connection.abort()
        return len(left)

    def forget(self, connection: Connection) -> None:
        """A connection has closed."""
        self.connections.discard(connection)
        if not self.connections:
            self._empty.set()

    def _look_later(self) -> None:
        """Look at all connections now and then: a timer for each would cost more than it is worth."""
        self._look = asyncio.get_running_loop().call_later(min(self._head, self._idle) / 4, self._look_at_all)

    def _look_at_all(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in list(self.connections):
            connection.close_late(now, self._head, self._idle)
        self._look_later()

    def _accept(self) -> Connection:
        return Connection(self)
