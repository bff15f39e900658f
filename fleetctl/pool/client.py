"""A small HTTP/1.1 client on llhttp (httptools), over a Unix socket or TCP: keep-alive, whole or streamed answers.

The worker reaches its engines with it. No redirects, no cookies, no compression.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import httptools

CONNECT = 5.0
"""Seconds for a connection."""
IDLE = 2.0
"""Seconds after which an idle connection is not used again: uvicorn, which most engines serve with, closes after 5."""
READ_AHEAD = 1 << 20
"""Bytes of an answer that wait for their reader at most, before the socket is left alone."""


class EngineGoneError(Exception):
    """Nobody listens at the address, or the connection broke before the answer was whole.

    ``reached`` says whether the request may have been read.
    """

    def __init__(self, message: str, *, reached: bool) -> None:
        super().__init__(message)
        self.reached = reached


class Whole(NamedTuple):
    """A whole answer."""

    status: int
    content_type: str
    body: bytes


class Address(NamedTuple):
    """Where somebody listens."""

    unix: str = ""
    host: str = ""
    port: int = 0
    tls: bool = False

    @property
    def authority(self) -> str:
        """What the Host header says."""
        standard = 443 if self.tls else 80
        name = f"[{self.host}]" if ":" in self.host else self.host
        return "localhost" if self.unix else name if self.port == standard else f"{name}:{self.port}"


def address(text: str) -> Address:
    """The address in ``unix:PATH`` or a URL. Raises ValueError saying what is wrong."""
    if text.startswith("unix:"):
        return Address(unix=text[5:])
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{text!r} is neither unix:PATH nor http://HOST:PORT")
    tls = parts.scheme == "https"
    return Address(host=parts.hostname, port=parts.port or (443 if tls else 80), tls=tls)


class Answer:
    """An answer whose head is here. Read it to its end or close it: until then its connection is in use."""

    __slots__ = ("_complete", "_connection", "_error", "_held", "_held_size", "_reader", "content_type", "status")

    def __init__(self, connection: _Connection, status: int, content_type: str) -> None:
        self.status = status
        self.content_type = content_type
        self._connection: _Connection | None = connection
        self._held: deque[bytes] = deque()
        self._held_size = 0
        self._complete = False
        self._error: EngineGoneError | None = None
        self._reader: asyncio.Future[None] | None = None

    async def some(self) -> bytes:
        """What has come of the body since the last call, at least something; empty: that was all. Raises
        EngineGoneError when the connection broke."""
        while not self._held:
            if self._complete:
                self.close()
                return b""
            if self._error is not None:
                raise self._error
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        piece = self._held[0] if len(self._held) == 1 else b"".join(self._held)
        self._held.clear()
        self._held_size = 0
        if self._connection is not None:
            self._connection.go_on()
        return piece

    async def read(self) -> bytes:
        """The whole body. Raises EngineGoneError."""
        pieces = []
        while piece := await self.some():
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Give the connection back, or cut it when the answer is not over: the engine then stops working on it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.leave(keep=self._complete)

    # The connection's side

    def take(self, data: bytes) -> bool:
        """A piece has come; whether there is room for more."""
        self._held.append(data)
        self._held_size += len(data)
        self._wake()
        return self._held_size < READ_AHEAD

    def end(self, error: EngineGoneError | None = None) -> None:
        """That was all, or the connection broke."""
        if error is None:
            self._complete = True
        else:
            self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class _Connection(asyncio.Protocol):
    """One connection: a request, its answer, the next request."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.used = 0
        self.idle_since = 0.0
        self.closed = False
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._content_type = ""
        self._keep = False
        self._paused = False
        self._answer: Answer | None = None
        self._head: asyncio.Future[Answer] | None = None

    def send(self, data: Iterable[bytes]) -> asyncio.Future[Answer]:
        """Write a request; its answer comes in the future."""
        assert self._transport is not None
        self.used += 1
        self._content_type = ""
        self._answer = None
        self._parser = httptools.HttpResponseParser(self)
        self._head = asyncio.get_running_loop().create_future()
        self._transport.writelines(data)
        return self._head

    def go_on(self) -> None:
        """The reader has taken what was here."""
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def leave(self, *, keep: bool) -> None:
        """The answer's reader has finished with it."""
        self._answer = self._head = None
        if keep and self._keep and not self.closed:
            self.go_on()
            self.client.keep(self)
        else:
            self.abort()

    def abort(self) -> None:
        """Cut the connection."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._head is None:  # nobody has asked for anything
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._lost(f"the answer is no HTTP: {error}")
            self.abort()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.client.forget(self)
        if self._answer is not None and not self._keep and self._ends_with_connection:
            self._answer.end()
        self._lost(f"the connection broke: {exc}" if exc else "the connection was closed before the answer was whole")

    def _lost(self, why: str) -> None:
        error = EngineGoneError(why, reached=True)
        if self._answer is not None:
            self._answer.end(error)
        elif self._head is not None and not self._head.done():
            self._head.set_exception(error)

    # llhttp's side

    _ends_with_connection = False

    def on_message_begin(self) -> None:
        self._ends_with_connection = True

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-type":
            self._content_type = value.decode("latin-1")
        elif name in (b"content-length", b"transfer-encoding"):
            self._ends_with_connection = False

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 or self._head is None or self._head.done():  # 100 Continue, or a reader that has gone
            return
        self._keep = self._parser.should_keep_alive()
        self._answer = Answer(self, status, self._content_type)
        self._head.set_result(self._answer)

    def on_body(self, body: bytes) -> None:
        if self._answer is not None and not self._answer.take(body) and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._answer is not None:
            self._answer.end()


class Client:
    """Requests to one address, over as many connections as there are requests at once."""

    def __init__(self, where: str, *, tls: ssl.SSLContext | None = None) -> None:
        """``where``: ``unix:PATH`` or ``http://HOST:PORT``. Raises ValueError for anything else."""
        self.where = address(where)
        self._tls = (tls or ssl.create_default_context()) if self.where.tls else None
        self._idle: list[_Connection] = []

    async def send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        content_type: str = "application/json",
        accept: str = "*/*",
        headers: Iterable[tuple[str, str]] = (),
    ) -> Answer:
        """The answer once its head is here. Raises EngineGoneError."""
        more = "".join(f"{name}: {value}\r\n" for name, value in headers)
        told = f"content-type: {content_type}\r\ncontent-length: {len(body)}\r\n" if body or method == "POST" else ""
        first = f"{method} {path} HTTP/1.1\r\nhost: {self.where.authority}\r\naccept: {accept}\r\n{told}{more}\r\n"
        data = [first.encode("latin-1", "replace"), body] if body else [first.encode("latin-1", "replace")]
        reached = False
        while True:
            connection = self._kept() or await self._connect(reached)
            head = connection.send(data)
            try:
                return await head
            except EngineGoneError:
                # A connection that was idle may have been closed by the other side just now, without having read this.
                if connection.used == 1:
                    raise
                reached = True
            except BaseException:
                connection.abort()
                raise

    async def whole(self, method: str, path: str, body: bytes = b"", **more: str) -> Whole:
        """The whole answer. Raises EngineGoneError."""
        answer = await self.send(method, path, body, **more)  # type: ignore[arg-type]
        try:
            return Whole(answer.status, answer.content_type, await answer.read())
        finally:
            answer.close()

    def close(self) -> None:
        """Close what is idle."""
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    def keep(self, connection: _Connection) -> None:
        """A connection has nothing to do."""
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)

    def forget(self, connection: _Connection) -> None:
        """A connection has closed."""
        if connection in self._idle:
            self._idle.remove(connection)

    def _kept(self) -> _Connection | None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if now - connection.idle_since < IDLE and not connection.closed:
                return connection
            connection.abort()
        return None

    async def _connect(self, reached: bool) -> _Connection:
        loop, where = asyncio.get_running_loop(), self.where
        try:
            async with asyncio.timeout(CONNECT):
                if where.unix:
                    _, made = await loop.create_unix_connection(lambda: _Connection(self), where.unix)
                else:
                    _, made = await loop.create_connection(
                        lambda: _Connection(self), where.host, where.port, ssl=self._tls
                    )
        except (OSError, TimeoutError) as error:
            at = where.unix or where.authority
            reason = getattr(error, "strerror", None) or error or "no answer"
            raise EngineGoneError(f"nobody listens at {at}: {reason}", reached=reached) from None
        return made
