"""What a gateway does with a request, from its head to the end of its answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from fleetctl.pool import wire
from fleetctl.pool.exchange import ClientGoneError, Exchange
from fleetctl.pool.gateway.answers import Answer
from fleetctl.pool.gateway.asked import Asked, cost, read_head
from fleetctl.pool.gateway.bodies import Store, Stored
from fleetctl.pool.gateway.metrics import Metrics
from fleetctl.pool.gateway.models import PATHS, STREAMED, Models
from fleetctl.pool.gateway.queue import Queue
from fleetctl.pool.gateway.refusals import (
    Refusal,
    adapter_in_header,
    body_late,
    broke_off,
    no_model,
    queue_away,
    slow_body,
    store_full,
    too_long,
)
from fleetctl.pool.gateway.uploads import Uploads
from fleetctl.pool.wire import Kind

if TYPE_CHECKING:
    from fleetctl.pool.s3 import Bucket

SLICE = 16 << 10
"""Bytes of a body that are scanned before the time is looked at."""
TURN = 0.001
"""Seconds of scanning after which others have their turn."""
SILENT = 10.0
"""Seconds without a piece of a body after which its place is for others."""
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
EVENTS = "text/event-stream"
T = TypeVar("T")


class Gateway:
    """The handler of all requests."""

    def __init__(self, config: wire.GatewayConfig, queue: Queue) -> None:
        self._config = config
        self._queue = queue
        self._models = Models(config.models)
        self._metrics = Metrics()
        self._loop = asyncio.get_running_loop()
        self.bodies: Store | None = None
        """Where long bodies go, once NATS was there."""
        self.uploads = Uploads(None, lambda: False)
        """Their turns."""
        self.bucket: Bucket | None = None
        """Where they go outside NATS."""
        self.stopping = False

    async def __call__(self, exchange: Exchange) -> None:
        """Answer one request."""
        if exchange.path in PATHS and exchange.method == "POST":
            await _Request(self, exchange).serve()
        else:
            try:
                self._page(exchange)
            except Refusal as refusal:
                refusal.answer(exchange)

    def _page(self, exchange: Exchange) -> None:
        path, read = exchange.path, exchange.method in ("GET", "HEAD")
        if path in PATHS:
            raise Refusal(405, f"{path} takes POST", allow="POST")
        if path not in ("/health", "/metrics", "/v1/models") and not path.startswith("/v1/models/"):
            raise Refusal(404, f"there is no {path[:200]} here: {', '.join(PATHS)}, /v1/models, /health, /metrics")
        if not read:
            raise Refusal(405, f"{path} takes GET", allow="GET, HEAD")
        connected = self._queue.connected.is_set()
        if path == "/v1/models":
            exchange.answer(200, self._models.page)
        elif path.startswith("/v1/models/"):
            exchange.answer(200, self._models.page_of(unquote(path.removeprefix("/v1/models/"))))
        elif path == "/metrics":
            page = self._metrics.page(len(self._queue.answers), connected, self._queue.unexpected)
            exchange.answer(200, page, PROMETHEUS)
        else:
            state = "stopping" if self.stopping else "ok" if connected else "NATS is not connected"
            if state == "ok" and self.bucket is not None and exchange.query == "bodies":
                state = self.bucket.trouble or state
            exchange.answer(200 if state == "ok" else 503, json.dumps({"status": state}).encode())

    @property
    def config(self) -> wire.GatewayConfig:
        """What this gateway was told."""
        return self._config

    @property
    def queue(self) -> Queue:
        """The requests under way."""
        return self._queue

    @property
    def models(self) -> Models:
        """The models that there are."""
        return self._models

    @property
    def metrics(self) -> Metrics:
        """What is counted."""
        return self._metrics


class _Request:
    """One request for a model."""

    def __init__(self, gateway: Gateway, exchange: Exchange) -> None:
        self._gateway = gateway
        self._exchange = exchange
        self._begun = time.perf_counter()
        self._model = ""
        self._size = 0
        self._kept = gateway.config.most_body
        """Bytes for which the store has room, of a body of unknown length."""
        self._status = 0
        self._identity = ""

    async def serve(self) -> None:
        """From the head to the end of the answer."""
        try:
            await self._serve()
        except Refusal as refusal:
            self._status = refusal.status
            refusal.answer(self._exchange, self._identity)
        except ClientGoneError:
            self._status = 499  # as nginx counts them
            self._gateway.metrics.cancelled[self._model] += 1
        finally:
            seconds = time.perf_counter() - self._begun
            self._gateway.metrics.answered(self._model, self._status or 500, seconds, self._size)

    async def _serve(self) -> None:
        exchange, config = self._exchange, self._gateway.config
        asked = read_head(exchange, config.deadline)
        if asked.model:
            self._named(asked)
        if exchange.length is not None and exchange.length > config.most_body:
            raise too_long(config.most_body)
        pieces, whole = list[bytes](), False
        if exchange.length is None or exchange.length <= wire.INLINE_BODY:
            first = self._first(min(wire.INLINE_BODY, config.most_body))
            pieces, whole = await (first if exchange.complete else _in_time(first, asked))
        if not whole:
            await self._ask_with_stored(asked, pieces)
            return
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._size = len(body)
        await self._feed(asked, body)
        self._read(asked)
        await self._ask(asked, body, None)

    async def _first(self, most: int) -> tuple[list[bytes], bool]:
        """The pieces of a body until they are more than ``most`` bytes, and whether that is all."""
        pieces, size = list[bytes](), 0
        exchange = self._exchange
        while piece := await (exchange.some() if exchange.complete else self._more()):
            pieces.append(piece)
            size += len(piece)
            if size > most:
                return pieces, False
        return pieces, True

    async def _ask_with_stored(self, asked: Asked, first: list[bytes]) -> None:
        """A request with a long body, of which some pieces have come."""
        await self._gateway.queue.reachable(asked.seconds)
        bodies = self._gateway.bodies
        if bodies is None:
            raise queue_away("the store for long bodies is not there yet")
        stored = await _in_time(self._store(bodies, asked, first), asked)
        self._gateway.metrics.stored += 1
        self._gateway.metrics.stored_bytes += stored.size
        try:
            self._read(asked)
            answer = await self._ask(asked, b"", stored)
        except BaseException:
            await asyncio.shield(bodies.remove(stored))
            raise
        if answer.duplicate:  # the request in the queue has the body that another gateway stored
            await asyncio.shield(bodies.remove(stored))

    async def _store(self, bodies: Store, asked: Asked, first: list[bytes]) -> Stored:
        uploads = self._gateway.uploads
        async with uploads.turn(self._exchange.length, self._gateway.config.most_body, asked.seconds) as self._kept:
            stored = await bodies.store(self._pieces(asked, first))
            uploads.brought(stored.size)
        return stored

    async def _pieces(self, asked: Asked, first: list[bytes]) -> AsyncIterator[bytes]:
        """A long body as it comes, scanned by the way. What cannot be answered is refused in the middle of it."""
        for piece in first:
            yield await self._passed(asked, piece)
        while piece := await self._more():
            yield await self._passed(asked, piece)
            await self._gateway.uploads.give_way(len(piece))

    async def _more(self) -> bytes:
        try:
            async with asyncio.timeout(SILENT):
                return await self._exchange.some()
        except TimeoutError:
            raise slow_body(SILENT) from None

    async def _passed(self, asked: Asked, piece: bytes) -> bytes:
        self._size += len(piece)
        if self._size > self._gateway.config.most_body:
            raise too_long(self._gateway.config.most_body)
        if self._size > self._kept:
            raise store_full()
        await self._feed(asked, piece)
        if not asked.model and "model" in asked.scanner.found:
            self._named(asked)
        return piece

    async def _feed(self, asked: Asked, data: bytes) -> None:
        """Scan what may be of use of some bytes; others have their turn while it takes long."""
        scanner, all_of_it = asked.scanner, asked.path in STREAMED
        began = time.perf_counter()
        for start in range(0, len(data), SLICE):
            known = "model" in scanner.found or (asked.model and not self._gateway.models.is_adapter(asked.model))
            if scanner.broken or (known and not all_of_it):
                return
            scanner.feed(data[start : start + SLICE])
            if time.perf_counter() - began > TURN:
                await asyncio.sleep(0)
                began = time.perf_counter()

    def _named(self, asked: Asked) -> None:
        """The model whose name was found. Raises Refusal."""
        name = asked.model or asked.scanner.found.get("model")
        if not isinstance(name, str) or not name:
            raise no_model()
        self._model = self._gateway.models.find(name, asked.path).key

    def _read(self, asked: Asked) -> None:
        """The same, of a body that has come as a whole: an adapter stands in it, as its engine reads no header."""
        self._named(asked)
        if self._gateway.models.is_adapter(asked.model) and asked.scanner.found.get("model") != asked.model:
            raise adapter_in_header(asked.model)

    async def _ask(self, asked: Asked, body: bytes, stored: Stored | None) -> Answer:
        """Put the request into the queue and pass its answer on. Raises Refusal and ClientGoneError."""
        exchange, queue = self._exchange, self._gateway.queue
        self._identity = identity = asked.identity(stored.digest if stored else body)
        found = asked.scanner.found
        envelope = wire.Envelope(
            id=identity,
            model=self._model,
            path=asked.path,
            answer=wire.answer_subject(self._gateway.config.name, identity),
            deadline=asked.deadline,
            size=self._size,
            content_type=asked.content_type,
            accept=asked.accept,
            cost=cost(asked.path, self._size, asked.scanner),
            stream=asked.path in STREAMED and found.get("stream") is True,
            trace=asked.trace,
            body=stored.name if stored else "",
            sent=int(time.time() * 1000),
        )
        answer = await queue.publish(envelope, body, asked.seconds)
        exchange.on_gone = lambda: answer.fail(ClientGoneError())
        try:
            if exchange.gone:
                raise ClientGoneError
            await self._pass_on(answer)
        except Refusal as refusal:
            if answer.message is None or refusal.status != 429:
                await queue.cancel(answer)
            raise
        except ClientGoneError:
            await queue.cancel(answer)
            raise
        finally:
            exchange.on_gone = None
            queue.done(answer)
        return answer

    async def _pass_on(self, answer: Answer) -> None:
        """The frames of an answer, to the client as they come. Raises Refusal when none come, and ClientGoneError."""
        exchange, headers = self._exchange, [("x-request-id", self._identity)]
        frame = await answer.next()
        self._status = frame.status
        if frame.kind in (Kind.WHOLE, Kind.FAILED):
            exchange.answer(frame.status, frame.body, frame.content_type, headers)
            return
        if frame.kind is not Kind.BEGIN:
            raise broke_off("its beginning was lost")
        exchange.begin(frame.status, frame.content_type, headers)
        events = frame.content_type.startswith(EVENTS)
        try:
            while frame.kind in (Kind.BEGIN, Kind.MORE):
                await exchange.send(frame.body)
                frame = await answer.next()
        except Refusal as refusal:
            await self._gateway.queue.cancel(answer)
            frame = wire.Frame(Kind.FAILED, refusal.body(), refusal.status)
        if frame.kind is Kind.END:
            exchange.end(frame.body)
            return
        self._status = frame.status
        if events:
            exchange.end(b"".join(b"data: %b\n" % line for line in frame.body.splitlines()) + b"\n")
        else:
            exchange.abort()


async def _in_time(reading: Coroutine[Any, Any, T], asked: Asked) -> T:
    """What comes of reading a body, in the time that the request may take. Raises Refusal when it takes longer."""
    try:
        async with asyncio.timeout(asked.seconds):
            return await reading
    except TimeoutError:
        raise body_late(asked.seconds) from None
