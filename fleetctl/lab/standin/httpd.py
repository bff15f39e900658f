"""A small HTTP/1.1 server on asyncio: keep-alive, chunked bodies both ways, and cancelling on disconnect."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus

from . import log

MAX_HEAD = 4 * 2**20
PHRASES = {status.value: status.phrase for status in HTTPStatus}


@dataclass
class Request:
    """One request; header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Response:
    """One answer; an iterator as `body` is sent in chunks, each as soon as it is there."""

    status: int = 200
    body: bytes | AsyncIterator[bytes] = b""
    content_type: str | None = "application/json"
    headers: dict[str, str] = field(default_factory=dict)


Handler = Callable[[Request], Awaitable[Response]]


class BadRequestError(Exception):
    """The bytes are not HTTP/1.1."""


def parse_head(head: bytes) -> Request:
    """The request line and headers. Raises BadRequestError."""
    lines = head.decode("latin-1").split("\r\n")
    try:
        method, target, version = lines[0].split(" ")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        if not version.startswith("HTTP/1."):
            raise BadRequestError
        if version == "HTTP/1.0":
            headers.setdefault("connection", "close")
        int(headers.get("content-length", "0"))
    except ValueError as error:
        raise BadRequestError from error
    return Request(method, target.partition("?")[0], headers, b"")


def parse_chunks(data: bytes) -> tuple[bytes, int] | None:
    """A whole chunked body and the bytes it took, or None while it is incomplete. Raises BadRequestError."""
    body: list[bytes] = []
    at = 0
    while True:
        end = data.find(b"\r\n", at)
        if end < 0:
            return None
        try:
            size = int(data[at:end].split(b";")[0], 16)
        except ValueError as error:
            raise BadRequestError from error
        start = end + 2
        if len(data) < start + size + 2:
            return None
        if size == 0:
            return b"".join(body), start + 2
        body.append(data[start : start + size])
        at = start + size + 2


class Connection(asyncio.Protocol):
    """One client. Requests are answered in order; a disconnect cancels the one that is being answered."""

    def __init__(self, server: "HttpServer") -> None:
        self.server = server
        self.transport: asyncio.Transport | None = None
        self.buffer = b""
        self.request: Request | None = None
        self.task: asyncio.Task[None] | None = None
        self.idle: asyncio.TimerHandle | None = None
        self.writable = asyncio.Event()
        self.writable.set()
        self.peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unix"
        self.server.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.server.connections.discard(self)
        self.transport = None
        self.writable.set()
        if self.idle:
            self.idle.cancel()
        if self.task:
            self.task.cancel()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if self.idle:
            self.idle.cancel()
        if self.task is None:
            self.next_request()

    def next_request(self) -> None:
        """Start answering if a whole request is there."""
        try:
            request = self.take_request()
        except BadRequestError:
            self.write_head(Response(400, content_type="text/plain; charset=utf-8"), b"", close=True)
            self.close()
            return
        if request is not None:
            self.task = asyncio.get_running_loop().create_task(self.answer(request))

    def take_request(self) -> Request | None:
        """The next request out of the buffer, or None while bytes are missing. Raises BadRequestError."""
        if self.request is None:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self.buffer) > MAX_HEAD:
                    raise BadRequestError
                return None
            self.request = parse_head(self.buffer[:end])
            self.buffer = self.buffer[end + 4 :]
            if self.request.headers.get("expect", "").lower() == "100-continue" and self.transport:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request = self.request
        if "chunked" in request.headers.get("transfer-encoding", "").lower():
            parsed = parse_chunks(self.buffer)
            if parsed is None:
                return None
            request.body, used = parsed
        else:
            used = int(request.headers.get("content-length", "0"))
            if len(self.buffer) < used:
                return None
            request.body = self.buffer[:used]
        self.buffer = self.buffer[used:]
        self.request = None
        return request

    async def answer(self, request: Request) -> None:
        """Handle one request and write its answer."""
        response = await self.server.handler(request)
        if self.server.access_log:
            line = f"{request.method} {request.path} HTTP/1.1"
            log.access(self.peer, line, response.status, PHRASES.get(response.status, ""))
        close = self.server.closing or request.headers.get("connection", "").lower() == "close"
        if isinstance(response.body, bytes):
            self.write_head(response, response.body, close)
        else:
            await self.write_chunks(response, response.body, close)
        self.task = None
        if self.transport is None:
            return
        if close or self.server.closing:
            self.close()
            return
        self.idle = asyncio.get_running_loop().call_later(self.server.keep_alive, self.close)
        if self.buffer:
            self.idle.cancel()
            self.next_request()

    def write_head(self, response: Response, body: bytes | None, close: bool) -> None:
        """Write status line and headers, with the body unless it follows in chunks (None)."""
        lines = [
            f"HTTP/1.1 {response.status} {PHRASES.get(response.status, '')}",
            f"date: {formatdate(usegmt=True)}",
            "server: uvicorn",
        ]
        if body is None:
            lines.append("transfer-encoding: chunked")
        else:
            lines.append(f"content-length: {len(body)}")
        if response.content_type and body != b"":
            lines.append(f"content-type: {response.content_type}")
        lines += [f"{name}: {value}" for name, value in response.headers.items()]
        if close:
            lines.append("connection: close")
        if self.transport:
            self.transport.write("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))

    async def write_chunks(self, response: Response, body: AsyncIterator[bytes], close: bool) -> None:
        """Write headers at once, then every part as it comes."""
        self.write_head(response, None, close)
        async for part in body:
            if self.transport is None:
                return
            self.transport.write(b"%x\r\n%b\r\n" % (len(part), part))
            await self.writable.wait()
        if self.transport:
            self.transport.write(b"0\r\n\r\n")

    def close(self) -> None:
        """Close after what was written has been sent."""
        if self.transport:
            self.transport.close()


class HttpServer:
    """Listens on a bound socket and hands every request to one handler."""

    def __init__(self, handler: Handler, keep_alive: float, access_log: bool) -> None:
        self.handler = handler
        self.keep_alive = keep_alive
        self.access_log = access_log
        self.closing = False
        self.connections: set[Connection] = set()
        self.server: asyncio.Server | None = None

    async def start(self, sock: socket.socket) -> None:
        """Begin to accept. Raises OSError when another process got to listen on the address first."""
        loop = asyncio.get_running_loop()
        if sock.family == socket.AF_UNIX:
            self.server = await loop.create_unix_server(lambda: Connection(self), sock=sock, backlog=2048)
        else:
            self.server = await loop.create_server(lambda: Connection(self), sock=sock, backlog=2048)

    async def stop(self) -> None:
        """Stop accepting, close idle connections, and wait for answers that are being written."""
        self.closing = True
        if self.server:
            self.server.close()
        for connection in list(self.connections):
            if connection.task is None:
                connection.close()
        tasks = [connection.task for connection in self.connections if connection.task]
        if tasks:
            await asyncio.wait(tasks, timeout=30)
        await asyncio.sleep(0)
