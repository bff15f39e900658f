"""A stand-in for the proxy: tells its room as HAProxy does, and answers as it is told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fleetctl.pool.batch.room import PAGE

Answering = Callable[[dict[str, Any]], int]


class Proxy:
    """``status`` says with which status each request is answered; ``page`` is what it tells of its room."""

    def __init__(self, status: Answering = lambda _: 200, pace: float = 0.0) -> None:
        self.status, self.pace = status, pace
        self.page = {"usable": {"big": 1}, "queued": {"big": 0}, "free": {"big": 100}}
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def answer(self, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """The answer to one request."""
        with self.lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            self.asked.append(body)
            self.headers.append(headers)
        time.sleep(self.pace)
        with self.lock:
            self.at_once -= 1
        return self.status(body), {"asked": body}


def _handler(proxy: Proxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send(200 if self.path == PAGE else 404, proxy.page)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            self._send(*proxy.answer(body, {name.lower(): value for name, value in self.headers.items()}))

        def _send(self, status: int, told: Any) -> None:
            data = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@contextmanager
def proxying(status: Answering = lambda _: 200, pace: float = 0.0) -> Iterator[Proxy]:
    """A proxy for the length of a with block."""
    proxy = Proxy(status, pace)
    try:
        yield proxy
    finally:
        proxy.server.shutdown()
        proxy.server.server_close()
