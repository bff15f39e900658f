"""One HTTP request and its answer, as a handler of the pool's server has it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol

READ_AHEAD = 256 << 10
"""Bytes of a body that wait for the handler at most, before the socket is left alone."""
JSON = "application/json"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientGoneError(Exception):
    """The client closed its connection before it had its answer."""


class BodyTooLongError(Exception):
    """A body has more bytes than the handler takes."""


class Link(Protocol):
    """What an exchange needs of the connection that it came on."""

    loop: asyncio.AbstractEventLoop
    closed: bool

    @property
    def stopping(self) -> bool: ...
    @property
    def unsent(self) -> int: ...
    def write(self, data: bytes) -> None: ...
    async def writable(self) -> None: ...
    def abort(self) -> None: ...
    def flow(self) -> None: ...


@lru_cache(maxsize=512)
def opening(status: int, content_type: str) -> bytes:
    """Status line and content type."""
    if any(ord(letter) < 32 for letter in content_type):
        raise ValueError("a content type has control characters in it")
    phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Unknown"
    told = f"content-type: {content_type}\r\n" if content_type else ""
    return f"HTTP/1.1 {status} {phrase}\r\n{told}".encode("latin-1", "replace")


class Exchange:
    """One request and its answer."""

    __slots__ = (
        "_begun",
        "_chunked",
        "_complete",
        "_connection",
        "_held",
        "_held_size",
        "_keep",
        "_over",
        "_reader",
        "_version",
        "_wants_continue",
        "headers",
        "length",
        "method",
        "on_gone",
        "path",
        "query",
    )

    def __init__(self, connection: Link, method: str, url: bytes, version: str, headers: dict[bytes, bytes]) -> None:
        path, _, query = url.partition(b"?")
        self.method = method
        self._version = version
        self.path = path.decode("latin-1")
        self.query = query.decode("latin-1")
        self.headers = headers
        """Names in lower case; values of a repeated header are joined by a comma."""
        said = headers.get(b"content-length")
        self.length: int | None = int(said) if said else (None if b"transfer-encoding" in headers else 0)
        """Bytes of the body; None: not said (chunked)."""
        self.on_gone: Callable[[], None] | None = None
        """Called once when the client closes before the answer is over."""
        self._connection = connection
        self._held: deque[bytes] = deque()
        self._held_size = 0
        self._complete = False
        self._keep = False
        self._reader: asyncio.Future[None] | None = None
        self._begun = False
        self._chunked = True
        self._over = False
        self._wants_continue = headers.get(b"expect", b"").lower() == b"100-continue"

    def header(self, name: bytes) -> str:
        """A header's value, or nothing."""
        value = self.headers.get(name)
        return value.decode("latin-1") if value else ""

    @property
    def gone(self) -> bool:
        """The client has closed its connection."""
        return self._connection.closed

    @property
    def unsent(self) -> int:
        """Bytes of the answer that the client has not taken yet."""
        return self._connection.unsent

    @property
    def begun(self) -> bool:
        """The head of the answer is on its way."""
        return self._begun

    # The request's body

    @property
    def complete(self) -> bool:
        """All of the body is here."""
        return self._complete

    async def some(self) -> bytes:
        """The next piece of the body; empty: that was all. Raises ClientGoneError."""
        while not self._held:
            if self._complete:
                return b""
            if self.gone:
                raise ClientGoneError
            if self._wants_continue:
                self._wants_continue = False
                self._connection.write(_CONTINUE)
            self._reader = self._connection.loop.create_future()
            await self._reader
        piece = self._held.popleft()
        self._held_size -= len(piece)
        if self._held_size < READ_AHEAD:
            self._connection.flow()
        return piece

    async def read(self, most: int) -> bytes:
        """The whole body. Raises BodyTooLongError when it has more than ``most`` bytes, and ClientGoneError."""
        if self.length is not None and self.length > most:
            raise BodyTooLongError
        if self._complete and len(self._held) == 1:  # as it came, in one piece
            self._held_size = 0
            piece = self._held.popleft()
            if len(piece) <= most:
                return piece
            raise BodyTooLongError
        pieces, size = [], 0
        while piece := await self.some():
            pieces.append(piece)
            size += len(piece)
            if size > most:
                raise BodyTooLongError
        return b"".join(pieces)

    # The answer

    def answer(
        self, status: int, body: bytes, content_type: str = JSON, headers: Iterable[tuple[str, str]] = ()
    ) -> None:
        """The whole answer. Does nothing when the client has gone."""
        head = self._head([opening(status, content_type), b"content-length: %d\r\n" % len(body)], headers)
        self._begun = True
        self._connection.write(head if self.method == "HEAD" else head + body)
        self._finish()

    def begin(self, status: int, content_type: str, headers: Iterable[tuple[str, str]] = ()) -> None:
        """The head of an answer that comes in pieces."""
        # Before HTTP/1.1 there are no chunks: such an answer ends with the connection.
        self._chunked = self._version != "1.0"
        self._keep = self._keep and self._chunked
        lines = [opening(status, content_type)] + ([b"transfer-encoding: chunked\r\n"] if self._chunked else [])
        head = self._head(lines, headers)
        self._begun = True
        self._connection.write(head)

    async def send(self, data: bytes) -> None:
        """A piece of the answer; waits while the client takes nothing. Raises ClientGoneError."""
        if data and self.method != "HEAD":
            self._connection.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        await self._connection.writable()

    def end(self, data: bytes = b"") -> None:
        """The last piece of the answer."""
        if self.method != "HEAD":
            last = b"%x\r\n%b\r\n" % (len(data), data) if data and self._chunked else data
            self._connection.write(last + b"0\r\n\r\n" if self._chunked else last)
        self._finish()

    def abort(self) -> None:
        """Break the answer off, so that the client sees that it is not whole."""
        self._over = True
        self._connection.abort()

    def _head(self, lines: list[bytes], headers: Iterable[tuple[str, str]]) -> bytes:
        for name, value in headers:
            if any(ord(letter) < 32 for letter in value):
                raise ValueError(f"the header {name} has control characters in it")
            lines.append(f"{name}: {value}\r\n".encode("latin-1", "replace"))
        self._keep = self._keep and self._complete and not self._connection.stopping
        if not self._keep:
            lines.append(b"connection: close\r\n")
        elif self._version == "1.0":
            lines.append(b"connection: keep-alive\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)

    def _finish(self) -> None:
        self._over = True
        self._held.clear()
        self._held_size = 0

    # The connection's side

    def take(self, data: bytes) -> None:
        """A piece of the body has come."""
        if not self._over:
            self._held.append(data)
            self._held_size += len(data)
        self.wake()

    def finished(self, keep: bool) -> None:
        """The body is all here."""
        self._complete, self._keep = True, keep
        self.wake()

    def wake(self) -> None:
        """The handler may look again."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    @property
    def full(self) -> bool:
        """As much of the body waits as may."""
        return self._held_size >= READ_AHEAD

    @property
    def over(self) -> bool:
        """The answer is written, or broken off."""
        return self._over

    @property
    def keeps(self) -> bool:
        """The connection can have another request after this one."""
        return self._keep
