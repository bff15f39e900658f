"""A client's connection to the pool's HTTP server: its requests one after the other, and when it is closed."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

import httptools

from fleetctl.pool.exchange import JSON, BodyTooLongError, ClientGoneError, Exchange, opening

log = logging.getLogger(__name__)

MOST_HEAD = 64 << 10
"""Bytes of a request's head."""
LINGER = 2.0
"""Seconds in which a client may go on sending a body that nobody wants, before its connection is cut."""

Handler = Callable[[Exchange], Awaitable[None]]


class Owner(Protocol):
    """What a connection needs of its server."""

    handler: Handler
    connections: set[Connection]
    stopping: bool

    def forget(self, connection: Connection) -> None: ...


class Connection(asyncio.Protocol):
    """A client's connection: its requests one after the other."""

    def __init__(self, server: Owner) -> None:
        self.server = server
        self.loop = asyncio.get_running_loop()
        self.closed = False
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._in_head = False
        self._head_size = 0
        self._read: Exchange | None = None
        """The request whose body is being read."""
        self._waiting: deque[Exchange] = deque()
        """Requests that a client sent before it had the answer to the one before."""
        self._at_work: Exchange | None = None
        self._task: asyncio.Task[None] | None = None
        self._paused = self._stuck = False
        self._writer: asyncio.Future[None] | None = None
        self._ending = False
        self._waits_since = self.loop.time()
        """Since when a request, or the rest of its head, is waited for."""
        self._served = False

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own kind is none in Python's eyes
        self.server.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self.server.forget(self)
        self._release_writer()
        self._waiting.clear()
        exchange = self._at_work
        if exchange is not None and not exchange.over:
            exchange.wake()
            if exchange.on_gone is not None:
                exchange.on_gone()

    def data_received(self, data: bytes) -> None:
        if self._ending:
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(400, b"this is not HTTP/1.1")
            return
        if self._in_head:
            self._head_size += len(data)
            if self._head_size > MOST_HEAD:
                self._refuse(431, b"the head of the request is longer than 64 KiB")
        self.flow()

    def pause_writing(self) -> None:
        self._stuck = True

    def resume_writing(self) -> None:
        self._stuck = False
        self._release_writer()

    # httptools' side

    def on_message_begin(self) -> None:
        self._url, self._headers, self._in_head, self._head_size = b"", {}, True, 0
        self._waits_since = self.loop.time()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:  # a trailer, which nobody reads
            return
        name = name.lower()
        there = self._headers.get(name)
        self._headers[name] = value if there is None else there + b", " + value

    def on_headers_complete(self) -> None:
        self._in_head = False
        url = self._url if self._url.startswith(b"/") else _path_of(self._url)
        method, version = self._parser.get_method().decode("latin-1"), self._parser.get_http_version()
        self._read = Exchange(self, method, url, version, self._headers)
        if self._at_work is None:
            self._start(self._read)
        else:
            self._waiting.append(self._read)

    def on_body(self, data: bytes) -> None:
        if self._read is not None:
            self._read.take(data)

    def on_message_complete(self) -> None:
        if self._read is not None:
            self._read.finished(self._parser.should_keep_alive())
            self._read = None

    # The exchanges' side

    @property
    def stopping(self) -> bool:
        """The program ends: no request after the one at work."""
        return self.server.stopping

    def write(self, data: bytes) -> None:
        """To the client, if it is still there."""
        if self._transport is not None and not self.closed:
            self._transport.write(data)

    async def writable(self) -> None:
        """Returns when the client takes more. Raises ClientGoneError."""
        while self._stuck and not self.closed:
            self._writer = self.loop.create_future()
            await self._writer
        if self.closed:
            raise ClientGoneError

    @property
    def unsent(self) -> int:
        """Bytes written that the client has not taken."""
        return self._transport.get_write_buffer_size() if self._transport and not self.closed else 0

    def abort(self) -> None:
        """Cut the connection."""
        if self._transport is not None:
            self._transport.abort()

    def flow(self) -> None:
        """Read from the socket, or leave it alone while what was read is not taken."""
        full = bool(self._waiting) or (self._read is not None and self._read.full)
        if full != self._paused and self._transport is not None and not self.closed:
            self._paused = full
            if full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def close_idle(self) -> None:
        """Close unless a request is at work."""
        if self._at_work is None:
            self._end()

    def close_late(self, now: float, head: float, idle: float) -> None:
        """Close it when the next request, or the rest of its head, has not come within so many seconds."""
        if self._ending or self._at_work is not None:
            return
        waited = now - self._waits_since
        if self._in_head and waited > head:
            self._refuse(408, b"the head of the request had not come in time")
        elif not self._in_head and waited > (idle if self._served else head):
            self._end()

    # Within

    def _start(self, exchange: Exchange) -> None:
        self._at_work = exchange
        self._task = self.loop.create_task(self._handle(exchange))

    async def _handle(self, exchange: Exchange) -> None:
        try:
            await self.server.handler(exchange)
        except ClientGoneError:
            pass
        except BodyTooLongError:
            exchange.answer(413, b'{"error":{"message":"the body is too long"}}')
        except Exception:
            log.exception("%s %s failed", exchange.method, exchange.path)
            if exchange.begun:
                exchange.abort()
            else:
                exchange.answer(500, b'{"error":{"message":"internal error","type":"internal_error"}}')
        self._over(exchange)

    def _over(self, exchange: Exchange) -> None:
        self._at_work = None
        if self.closed:
            return
        self._served = True
        if not self._in_head:
            self._waits_since = self.loop.time()
        if not exchange.over:
            exchange.abort()
        elif not exchange.keeps or self.server.stopping:
            self._end()
        elif self._waiting:
            self._start(self._waiting.popleft())
            self.flow()

    def _end(self) -> None:
        """Close once all is written. A client that is still sending has a moment to read its answer first."""
        self._ending = True
        if self._transport is None or self.closed:
            return
        if self._read is None and not self._in_head:
            self._transport.close()
            return
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self.loop.call_later(LINGER, self.abort)

    def _refuse(self, status: int, why: bytes) -> None:
        if self._at_work is None:
            body = b'{"error":{"message":"%b","type":"invalid_request_error"}}' % why
            told = b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.write(opening(status, JSON) + told + body)
        self._end() if self._at_work is None else self.abort()

    def _release_writer(self) -> None:
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)


def _path_of(url: bytes) -> bytes:
    """Path and query of a URL in absolute form."""
    try:
        parsed = httptools.parse_url(url)
    except httptools.HttpParserInvalidURLError:
        return url
    return (parsed.path or b"/") + (b"?" + parsed.query if parsed.query else b"")
