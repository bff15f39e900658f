"""Serves a fleet's metrics to Prometheus. It is read when they are asked for; who asks meanwhile shares the read."""

from __future__ import annotations

import ipaddress
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Metric, make_wsgi_app
from prometheus_client.registry import Collector

from fleetctl.errors import SpecError
from fleetctl.watch.metrics import families
from fleetctl.watch.sample import Sample

IDLE = 10.0  # seconds that a client may take over its request


class SharedReads:
    """A read of the fleet that all who ask while it runs get the result of."""

    def __init__(self, read: Callable[[], Sample]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._running: _Read | None = None

    def sample(self) -> tuple[Sample, float]:
        """The fleet, and the seconds that reading it took."""
        with self._lock:
            running = self._running
            mine = running is None
            if running is None:
                running = self._running = _Read()
        if mine:
            try:
                began = time.monotonic()
                running.result = (self._read(), time.monotonic() - began)
            finally:
                with self._lock:
                    self._running = None
                running.done.set()
        running.done.wait()
        if running.result is None:
            raise RuntimeError("the fleet could not be read")
        return running.result


class _Read:
    def __init__(self) -> None:
        self.done = threading.Event()
        self.result: tuple[Sample, float] | None = None


class FleetCollector(Collector):
    """Reads the fleet whenever the registry is asked; ``low`` is as in :func:`~fleetctl.watch.metrics.families`."""

    def __init__(self, reads: SharedReads, low: Mapping[str, int]) -> None:
        self._reads, self._low = reads, low

    def collect(self) -> Iterator[Metric]:
        sample, took = self._reads.sample()
        return families(sample, self._low, took)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Without the name of the address, which HTTPServer would ask of a DNS server that may not answer."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that leaves in the middle is nothing to write home about; anything else is."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    timeout = IDLE

    def log_message(self, format: str, *args: object) -> None:
        return None


def listen(place: str, read: Callable[[], Sample], low: Mapping[str, int]) -> WSGIServer:
    """A server for ``HOST:PORT`` (port 0: any) that answers GET /metrics; ``serve_forever`` runs it.

    Raises SpecError for a place that is none, or where nothing can listen.
    """
    host, port = parse_place(place)
    registry = CollectorRegistry()
    registry.register(FleetCollector(SharedReads(read), low))
    metrics = make_wsgi_app(registry)

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/metrics":
            return metrics(environ, start_response)  # type: ignore[no-any-return]
        start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"fleetctl exporter: the metrics are at /metrics\n"]

    try:
        return make_server(host, port, app, _Server6 if ":" in host else _Server, _Quiet)
    except (OSError, OverflowError, UnicodeError) as error:
        said = getattr(error, "strerror", None) or error
        raise SpecError(f"cannot listen on {place}: {said}", hint="name another place with --listen") from error


def for_this_machine_alone(host: str) -> bool:
    """What listens there is reached from this machine and from no other."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_place(place: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT`` or ``[ADDRESS]:PORT``. Raises SpecError."""
    host, colon, port = place.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    plain = bare == host and ":" not in host
    if not colon or not bare or not port.isdecimal() or int(port) > 65535 or not (plain or host == f"[{bare}]"):
        raise SpecError(f"--listen {place} is not HOST:PORT", hint="write like 127.0.0.1:9790, or [::1]:9790")
    return bare, int(port)
