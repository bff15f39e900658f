"""NATS through a Unix socket, which leads to a box over SSH: nats-py itself knows TCP and WebSocket only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from urllib.parse import ParseResult

from nats.aio.transport import TcpTransport


class UnixTransport(TcpTransport):
    """In place of the transport that a client makes for itself. ``path`` is asked before each connection."""

    def __init__(self, path: Callable[[], Path]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._path = path

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        """Connect to the socket; the URL counts for TLS alone."""
        opening = asyncio.open_unix_connection(str(self._path()), limit=buffer_size)
        reader, writer = await asyncio.wait_for(opening, connect_timeout)
        self._bare_io_reader = self._io_reader = reader
        self._bare_io_writer = self._io_writer = writer

    def __bool__(self) -> bool:
        return True  # else the client would make another one in its place
