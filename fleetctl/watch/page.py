"""The status page over HTTP: it only tells, and only those who ask for it by a name that is its own."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import json
import re
import socket
import sys
import threading
from collections.abc import Collection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fleetctl import __version__
from fleetctl.resources import root_text
from fleetctl.watch.feed import MOST, Feed, TooManyViewersError

PATIENCE = 10.0  # seconds for a client to send its request, or to read what is there for it
CONNECTIONS = 2 * MOST


def content_policy(html: str) -> str:
    """A Content-Security-Policy under which the page's own script and style run, and nothing else does."""
    own = {
        kind: " ".join(f"'sha256-{_digest(text)}'" for text in re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL))
        for kind, tag in (("script-src", "script"), ("style-src", "style"))
    }
    allowed = [f"{kind} {hashes}" for kind, hashes in own.items()]
    closed = [f"{kind} 'none'" for kind in ("base-uri", "form-action", "frame-ancestors")]
    return "; ".join(["default-src 'none'", "connect-src 'self'", "img-src data:", *allowed, *closed])


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def is_ours(host: str | None, names: Collection[str]) -> bool:
    """A Host header that no other site's page can send: an address, localhost, or a name of this machine.

    A name that somebody else points at this address (DNS rebinding) is not answered.
    """
    if not host:
        return False
    name = re.sub(r":\d+$", "", host.strip().lower())
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return name.removesuffix(".") in {"localhost", *(one.lower() for one in names)}
    return True


class Page(ThreadingHTTPServer):
    """Serves the page, ``/api/status`` and ``/events`` of one feed. ``names`` are more names that it is asked by."""

    daemon_threads = True
    request_queue_size = CONNECTIONS

    def __init__(self, listen: tuple[str, int], feed: Feed, names: Collection[str] = ()) -> None:
        self.feed = feed
        self.names = {socket.gethostname(), *names}
        # A DNS server is asked for the whole name, and may not answer for long: nobody waits for that.
        threading.Thread(target=lambda: self.names.add(socket.getfqdn()), name="own name", daemon=True).start()
        self.html = root_text("web", "index.html")
        self.policy = content_policy(self.html)
        self._room = threading.BoundedSemaphore(CONNECTIONS)
        self.address_family = socket.AF_INET6 if ":" in listen[0] else socket.AF_INET
        super().__init__(listen, _Answer)

    def server_bind(self) -> None:
        """Bind, without asking the network for this machine's name."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is room for another connection."""
        return self._room.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """One connection, in a thread of its own."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is nobody's fault; anything else is shown."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Answer(BaseHTTPRequestHandler):
    server: Page
    timeout = PATIENCE
    server_version = f"fleetctl/{__version__}"
    sys_version = ""
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """The page, or what it asks for."""
        if not is_ours(self.headers.get("Host"), self.server.names):
            self._text(421, "this page is not served under that name: use its address, or --host NAME\n")
            return
        path = self.path.partition("?")[0]
        if path in ("/", "/index.html"):
            self._send(200, "text/html; charset=utf-8", self.server.html.encode())
        elif path == "/api/status":
            body = json.dumps(self.server.feed.now(), default=str).encode()
            self._send(200, "application/json", body)
        elif path == "/events":
            self._events()
        else:
            self._text(404, "there is /, /api/status and /events\n")

    do_HEAD = do_GET  # noqa: N815

    def _refuse(self) -> None:
        self._text(405, "this page only tells: GET\n", Allow="GET, HEAD")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse  # noqa: N815

    def _events(self) -> None:
        try:
            with self.server.feed.viewer() as seen:
                self.close_connection = True
                self._head(200, "text/event-stream", None)
                if self.command == "HEAD":
                    return
                for events in seen:
                    told = "".join(f"event: {kind}\ndata: {text}\n\n" for kind, text in events)
                    self.wfile.write((told or ": nothing new\n\n").encode())
        except TooManyViewersError as error:
            self._text(503, f"{error.message}\n")
        except OSError:  # the viewer has gone, or does not read
            return

    def _text(self, status: int, text: str, **headers: str) -> None:
        self.close_connection = True  # there may be a body that nobody reads
        self._send(status, "text/plain; charset=utf-8", text.encode(), **headers)

    def _send(self, status: int, kind: str, body: bytes, **headers: str) -> None:
        self._head(status, kind, len(body), **headers)
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: int, kind: str, length: int | None, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length" if length is not None else "Connection", str(length or "close"))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", self.server.policy)
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: one comes every time that somebody looks."""
