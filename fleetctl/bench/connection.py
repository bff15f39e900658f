"""HTTP/1.1 connections of a load generator: as little work per request as can be.

A protocol on the event loop and llhttp (httptools) read answers; there is no task, no stream and no copy per piece. On
one core that makes several thousand streamed requests a second, where general clients make some hundreds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import httptools

from fleetctl.bench.endpoint import Endpoint
from fleetctl.bench.exchange import Exchange, Page, Request, Window

_MOST_ANSWERS = 1000  # of one connection, before a new one is made: some servers close theirs after so many
_BROKEN = {True: "stream broke off", False: "connection closed without an answer"}


class Connection(asyncio.Protocol):
    """One connection. It has one request at a time; `ready` says that it can have the next."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._now = 0.0
        self.answers = 0

    @property
    def ready(self) -> bool:
        """It is open and has nothing under way."""
        return self._transport is not None and not self._transport.is_closing() and self._exchange is None

    def send(self, exchange: Exchange, data: bytes) -> asyncio.Future[None]:
        """Send a request; the future is done when the exchange has ended, well or not."""
        assert self._transport is not None
        self._exchange = exchange
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        return self._waiter

    def close(self) -> None:
        """Close at once; an engine gives up what it was generating."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own kind is none in Python's eyes

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if self._exchange is not None:
                self._exchange.fail("answer is not HTTP", self._now)
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        exchange = self._exchange
        if exchange is not None and exchange.ended is None:
            exchange.fail(_BROKEN[exchange.status == 200], time.perf_counter())
        self._over()

    # httptools' side

    def on_headers_complete(self) -> None:
        if self._exchange is not None:
            self._exchange.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._exchange is not None:
            self._exchange.body(body, self._now)

    def on_message_complete(self) -> None:
        if self._exchange is None or self._exchange.status < 200:  # 100 Continue is no answer
            return
        self.answers += 1
        self._exchange.complete(self._now)
        if not self._parser.should_keep_alive() or self.answers >= _MOST_ANSWERS:
            self.close()
        self._over()

    def _over(self) -> None:
        self._exchange = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Asker:
    """Sends requests to one endpoint over as many connections as there are requests at once."""

    def __init__(self, endpoint: Endpoint, *, timeout: float, connect_timeout: float = 10.0) -> None:
        self.endpoint = endpoint
        self.timeout = timeout
        """Seconds for a whole answer; a request that takes longer fails with ``timeout``."""
        self.connect_timeout = connect_timeout
        self.under_way: set[Exchange] = set()
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._heads: dict[str, bytes] = {}
        self._tls = endpoint.context

    def head(self, path: str) -> bytes:
        """The request's head up to the length of its body."""
        if path not in self._heads:
            lines = [
                f"POST {self.endpoint.path}{path} HTTP/1.1",
                f"host: {self.endpoint.authority}",
                "content-type: application/json",
                "accept: */*",
                "user-agent: fleetctl-bench",
                *([f"authorization: Bearer {self.endpoint.api_key}"] if self.endpoint.api_key else []),
                "content-length: ",
            ]
            self._heads[path] = "\r\n".join(lines).encode("latin-1")
        return self._heads[path]

    async def ask(self, request: Request, window: Window, intended: float | None = None) -> Exchange:
        """Send a request and wait for the end of its answer. What goes wrong is in the exchange; it raises nothing."""
        exchange = Exchange(request, time.perf_counter() if intended is None else intended, window)
        with self._counted(exchange):
            data = b"%b%d\r\n\r\n%b" % (self.head(request.path), len(request.body), request.body)
            await self._carry(exchange, data)
        return exchange

    async def get(self, path: str) -> Page:
        """A page; ``path`` is from the root of the server. What goes wrong is in it."""
        page = Page(Request(path, b"", False, 0), time.perf_counter(), Window())
        key = f"authorization: Bearer {self.endpoint.api_key}\r\n" if self.endpoint.api_key else ""
        head = f"GET {path} HTTP/1.1\r\nhost: {self.endpoint.authority}\r\n{key}\r\n"
        await self._carry(page, head.encode("latin-1"))
        return page

    async def _carry(self, exchange: Exchange, data: bytes) -> None:
        """Send the bytes of a request and wait for the end of its answer."""
        exchange.sent = time.perf_counter()
        connection = await self._connected(exchange)
        if connection is not None:
            alarm = asyncio.get_running_loop().call_later(self.timeout, self._late, connection, exchange)
            try:
                await connection.send(exchange, data)
            finally:
                alarm.cancel()
                if connection.ready:
                    self._idle.append(connection)
                else:
                    self._all.discard(connection)
                    connection.close()

    @contextmanager
    def _counted(self, exchange: Exchange) -> Iterator[None]:
        self.under_way.add(exchange)
        try:
            yield
        finally:
            self.under_way.discard(exchange)

    async def _connected(self, exchange: Exchange) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.ready:
                return connection
            self._all.discard(connection)
        try:
            connection = await asyncio.wait_for(self._connect(), self.connect_timeout)
        except TimeoutError:
            exchange.fail("connection timed out", time.perf_counter())
        except ConnectionRefusedError:
            exchange.fail("connection refused", time.perf_counter())
        except OSError as error:
            exchange.fail(f"no connection: {error.strerror or error}", time.perf_counter())
        else:
            self._all.add(connection)
            return connection
        return None

    async def _connect(self) -> Connection:
        loop, to = asyncio.get_running_loop(), self.endpoint
        if to.socket is not None:
            _, connection = await loop.create_unix_connection(Connection, str(to.socket))
        else:
            name = to.host if self._tls else None
            _, connection = await loop.create_connection(
                Connection, to.host, to.port, ssl=self._tls, server_hostname=name
            )
        return connection

    def _late(self, connection: Connection, exchange: Exchange) -> None:
        exchange.fail("timeout", time.perf_counter())
        connection.close()

    def close(self) -> None:
        """Close every connection at once."""
        for connection in list(self._all):
            connection.close()
        self._all.clear()
        self._idle.clear()
