"""The worker's own interface: its health, metrics and state, what operators wish, and direct calls past the queue.

GET  /health                        200 while NATS is connected and it takes requests, else 503; with ?bodies also
                                    503 while the bucket for long bodies has not been proved
GET  /metrics                       Prometheus text
GET  /state                         JSON (fleetctl/pool/worker/state.py)
POST /models/NAME/load|evict        as soon as what runs allows
POST /models/NAME/pin|unpin         in place of what fleet.yaml says
POST /models/NAME/restart           its engines are started anew, each after its last request
POST /models/NAME/leave             a load that was wished, and has not come about, is wished no more
POST /v1/embeddings and so on       a request for an engine of this box, by the model in its body

Where there is a Unix socket for what changes something, the port says GET alone: any user of the box can ask there.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgpack

from fleetctl.pool import wire
from fleetctl.pool.gateway.models import PATHS
from fleetctl.pool.http import ClientGoneError, Exchange
from fleetctl.pool.worker import convert
from fleetctl.pool.worker.loading import RefusedLoadError
from fleetctl.pool.worker.request import Request, failed
from fleetctl.pool.worker.state import metrics, state

if TYPE_CHECKING:
    from fleetctl.pool.worker.worker import Worker

MOST_BODY = 64 << 20
DEADLINE = 120.0
"""Seconds that a direct call may take."""
TEXT = "text/plain; version=0.0.4; charset=utf-8"


class _Direct:
    """A direct call: nobody else has it, and its answer goes out on its connection."""

    def __init__(self, exchange: Exchange, accept: str) -> None:
        self.over = asyncio.Event()
        self._exchange = exchange
        self._accept = accept
        self._begun = False

    async def ack(self) -> None:
        """Nobody waits for this."""
        self.over.set()

    async def ack_surely(self) -> None:
        """Nobody waits for this."""

    async def at_work(self) -> None:
        """Nobody waits for this."""

    async def back(self) -> None:
        """There is nobody else."""
        await self.send(failed(503, "no engine of this box serves the model at the moment", self._accept))
        self.over.set()

    async def send(self, frame: wire.Frame) -> None:
        """One frame."""
        exchange, kind = self._exchange, frame.kind
        if exchange.gone or exchange.over:
            return
        try:
            if kind in (wire.Kind.WHOLE, wire.Kind.FAILED) and not self._begun:
                exchange.answer(frame.status, frame.body, frame.content_type)
            elif kind == wire.Kind.BEGIN:
                self._begun = True
                exchange.begin(frame.status, frame.content_type)
                await exchange.send(frame.body)
            elif kind == wire.Kind.MORE:
                await exchange.send(frame.body)
            elif kind == wire.Kind.END:
                exchange.end(frame.body)
            elif kind == wire.Kind.FAILED:
                exchange.abort()
        except ClientGoneError:
            return
        if kind in (wire.Kind.WHOLE, wire.Kind.END, wire.Kind.FAILED):
            self.over.set()


class Rest:
    """Answers requests to the worker itself; until it has once been connected to NATS, with 503.

    ``elsewhere``: the Unix socket for all that is no GET; empty: that is said here too."""

    def __init__(self, worker: Worker, *, elsewhere: str = "") -> None:
        self._worker = worker
        self._elsewhere = elsewhere

    async def handle(self, exchange: Exchange) -> None:
        """One request."""
        method, path = exchange.method, exchange.path
        if not self._worker.ready:
            _say(exchange, 503, "the worker has no connection to NATS yet")
        elif method in ("GET", "HEAD"):
            await self._get(exchange, path)
        elif self._elsewhere:
            _say(exchange, 403, f"this port tells GET /health, /metrics and /state; for the rest: {self._elsewhere}")
        elif method == "POST" and path.startswith("/models/"):
            self._wish(exchange, path)
        elif method == "POST" and path in PATHS:
            await self._call(exchange, path)
        else:
            _say(
                exchange,
                404,
                "there is GET /health, /metrics and /state, POST /models/NAME/load|evict|leave|pin|unpin|restart and "
                + ", ".join(PATHS),
            )

    async def _get(self, exchange: Exchange, path: str) -> None:
        worker = self._worker
        if path == "/health":
            said = "draining" if worker.intake.draining else "" if worker.connected else "NATS is not connected"
            if not said and worker.bucket is not None and exchange.query == "bodies":
                said = worker.bucket.trouble
            exchange.answer(503 if said else 200, json.dumps({"status": said or "ok"}).encode())
        elif path == "/metrics":
            exchange.answer(200, metrics(worker).encode(), TEXT)
        elif path == "/state":
            queue = await worker.queue.told(worker.client)
            exchange.answer(200, json.dumps({**state(worker), "queue": queue}).encode())
        else:
            _say(exchange, 404, f"there is no {path}; there is /health, /metrics and /state")

    def _wish(self, exchange: Exchange, path: str) -> None:
        name, _, what = path.removeprefix("/models/").rpartition("/")
        loading = self._worker.loading
        try:
            if what == "load":
                loading.wish(unquote(name), "load")
            elif what == "evict":
                loading.wish(unquote(name), "evict")
            elif what == "restart":
                loading.restart(unquote(name))
            elif what == "leave":
                loading.leave(unquote(name))
            elif what in ("pin", "unpin"):
                loading.pin(unquote(name), what == "pin")
            else:
                _say(
                    exchange,
                    404,
                    f"{what!r} is nothing to do with a model; there is load, evict, leave, pin, unpin, restart",
                )
                return
            told = {
                engine.name: {"phase": engine.phase, "pinned": engine.pinned} for engine in loading.named(unquote(name))
            }
            exchange.answer(202, json.dumps(told).encode())
        except RefusedLoadError as error:
            _say(exchange, 404 if "has no model" in error.message else 409, str(error))

    async def _call(self, exchange: Exchange, path: str) -> None:
        body = await exchange.read(MOST_BODY)
        content_type = exchange.header(b"content-type") or convert.JSON
        accept = exchange.header(b"accept")
        if not convert.is_msgpack(accept):
            accept = convert.MSGPACK if convert.is_msgpack(content_type) and accept in ("", "*/*") else convert.JSON
        name, stream = _model(body, content_type)
        desk = self._worker.desk_of(name)
        if desk is None:
            _say(exchange, 404, f"this box has no model {name!r}", accept)
            return
        identity = exchange.header(b"x-request-id") or secrets.token_hex(8)
        direct = _Direct(exchange, accept)
        now = int(time.time() * 1000)
        envelope = wire.Envelope(
            f"direct.{secrets.token_hex(4)}.{identity}",
            desk.model,
            path,
            "",
            now + int(DEADLINE * 1000),
            len(body),
            content_type=content_type,
            accept=accept,
            stream=stream,
            trace=exchange.header(b"traceparent"),
            sent=now,
        )
        request = Request(envelope, body, desk.model, "work", direct, direct)
        exchange.on_gone = lambda: self._gone(request, direct)
        self._worker.intake.accept(request)
        await direct.over.wait()

    def _gone(self, request: Request, direct: _Direct) -> None:
        self._worker.intake.task(self._worker.intake.leave(request))
        direct.over.set()


def _model(body: bytes, content_type: str) -> tuple[str, bool]:
    """The model that a body names, and whether it asks for a stream."""
    try:
        found: Any = msgpack.unpackb(body) if convert.is_msgpack(content_type) else json.loads(body)
    except (ValueError, RecursionError, msgpack.UnpackException):
        return "", False
    if not isinstance(found, dict):
        return "", False
    return str(found.get("model", "")), found.get("stream") is True


def _say(exchange: Exchange, status: int, message: str, accept: str = convert.JSON) -> None:
    frame = failed(status, message, accept)
    exchange.answer(status, frame.body, frame.content_type)
