"""Calls to engines: one request, or several that were merged, and what follows from each way that a call can end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

import nats.errors

from fleetctl.pool import wire
from fleetctl.pool.client import Answer, EngineGoneError, Whole
from fleetctl.pool.worker import convert, merge
from fleetctl.pool.worker.engine import Engine
from fleetctl.pool.worker.pace import tokens_in
from fleetctl.pool.worker.request import Request, failed

log = logging.getLogger(__name__)

SECOND_LOOK = 0.3
"""Seconds after an error of an engine until it is asked whether it is alive: some say 500 and exit a moment later."""
EVENTS = "text/event-stream"


class Holder(Protocol):
    """Who holds the requests, and hears how calls have ended."""

    def died(self, engine: Engine, requests: Sequence[Request]) -> None:
        """The engine died, or hangs, with these at work; none of them has been answered."""

    def again(self, requests: Sequence[Request]) -> None:
        """These have to be asked once more, each for itself."""

    def over(self, request: Request) -> None:
        """A request is finished with."""

    def lost(self, requests: Sequence[Request]) -> None:
        """Something went wrong that nobody expected; nothing was acknowledged."""


class Calls:
    """Runs calls. ``changed`` is called when an engine has room again."""

    def __init__(self, holder: Holder, changed: Callable[[Engine], None]) -> None:
        self._holder = holder
        self._changed = changed
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, engine: Engine, group: list[Request]) -> None:
        """Begin a call; it reports by itself. Requests whose deadline has passed are told so without any work."""
        late = [request for request in group if (left := request.left()) is not None and left <= 0]
        if late:
            self._run(self._late(late), late)
            group = [request for request in group if request not in late]
            if not group:
                return
        engine.begin(group)
        if len(group) == 1:
            group[0].call = self._run(self._one(engine, group[0]), group)
        else:
            self._run(self._merged(engine, group), group)

    def _run(self, work: Coroutine[Any, Any, None], group: Sequence[Request]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._done, group))
        return task

    def _done(self, group: Sequence[Request], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a call with %d requests: %s", len(group), error, exc_info=error)
        if error is not None or task.cancelled():
            self._holder.lost(group)

    async def _late(self, requests: Sequence[Request]) -> None:
        for request in requests:
            late = failed(504, "the deadline passed while the request waited", request.envelope.accept)
            await self._settle(request, late)

    def _leave(self, engine: Engine, group: list[Request], tokens: int) -> None:
        engine.finish(group, tokens)
        self._changed(engine)

    async def _one(self, engine: Engine, request: Request) -> None:
        tokens = 0
        frame: wire.Frame | None = None
        try:
            try:
                frame, tokens = await self._answer(engine, request)
            finally:
                request.call = None
                self._leave(engine, [request], tokens)
        except EngineGoneError as error:
            if request.begun:
                frame = failed(502, f"the engine broke off: {error}", request.envelope.accept)
            self._died(engine, [request], error)
        except TimeoutError:
            frame = failed(504, "the answer was not finished in time", request.envelope.accept)
        except asyncio.CancelledError:
            if not request.gone:
                raise
        if request.gone:
            await request.ack()
            self._holder.over(request)
        elif frame is not None:
            await self._settle(request, frame)
        elif request.begun:
            self._holder.over(request)

    async def _answer(self, engine: Engine, request: Request) -> tuple[wire.Frame | None, int]:
        """The last frame of the answer, None when all of it went out; and the tokens that it took."""
        envelope = request.envelope
        packed = engine.speaks_messagepack and convert.is_msgpack(envelope.accept)
        accept = EVENTS if envelope.stream else convert.MSGPACK if packed else convert.JSON
        async with asyncio.timeout(request.left()):
            answer = await self._ask(engine, envelope, request.body, request.content_type, accept)
            try:
                if envelope.stream and answer.status < 400 and answer.content_type.startswith(EVENTS):
                    return None, await self._stream(request, answer)
                whole = Whole(answer.status, answer.content_type, await answer.read())
            finally:
                answer.close()
            await self._believe(engine, whole.status)
        tokens = tokens_in(whole.body)
        if tokens and whole.status < 400:
            engine.pace.counted(request.cost, tokens)
        return _frame(whole, envelope), tokens or request.cost

    async def _ask(
        self, engine: Engine, envelope: wire.Envelope, body: bytes, content_type: str, accept: str
    ) -> Answer:
        headers = [("x-request-id", envelope.id)] + ([("traceparent", envelope.trace)] if envelope.trace else [])
        return await engine.client.send(
            "POST", envelope.path, body, content_type=content_type, accept=accept, headers=headers
        )

    async def _believe(self, engine: Engine, status: int) -> None:
        """Whether an engine's error is an answer, or its end. Raises EngineGoneError when it is that."""
        if status >= 500:
            await asyncio.sleep(SECOND_LOOK)
            if not await engine.answers():
                raise EngineGoneError(f"status {status}, and then no answer to its health check", reached=True)

    async def _stream(self, request: Request, answer: Answer) -> int:
        """Pass an answer on as it comes. The request is acknowledged before its first piece goes out."""
        kind, tokens = wire.Kind.BEGIN, 0
        while piece := await answer.some():
            if kind == wire.Kind.BEGIN:
                await request.ack_surely()
                request.begun = True
            request.sent_at = time.monotonic()
            await request.outlet.send(wire.Frame(kind, piece, answer.status, answer.content_type))
            kind = wire.Kind.MORE
            tokens = tokens_in(piece) or tokens
        if kind == wire.Kind.BEGIN:  # a stream of nothing
            await request.ack_surely()
            await request.outlet.send(wire.Frame(wire.Kind.WHOLE, b"", answer.status, answer.content_type))
        else:
            await request.outlet.send(wire.Frame(wire.Kind.END))
        request.begun = True
        return tokens or request.cost

    async def _merged(self, engine: Engine, group: list[Request]) -> None:
        """Several requests as one call. One that fails does not fail the others: all are asked again, alone."""
        merged = [request.merge for request in group if request.merge is not None]
        cost = sum(request.cost for request in group)
        left = [seconds for request in group if (seconds := request.left()) is not None]
        parts: list[bytes] | None = None
        tokens = 0
        try:
            try:
                async with asyncio.timeout(max(left) if len(left) == len(group) else None):
                    first, kind = group[0].envelope, merged[0].content_type
                    answer = await self._ask(engine, first, merge.joined(merged), kind, kind)
                    try:
                        status, body = answer.status, await answer.read()
                    finally:
                        answer.close()
                    await self._believe(engine, status)
                if status == 200:
                    counts = [len(one.inputs) for one in merged]
                    parts = merge.split(body, counts, [one.cost for one in group], merged[0].packed)
                    tokens = tokens_in(body)
                    if tokens:
                        engine.pace.counted(cost, tokens)
            finally:
                self._leave(engine, group, tokens or (cost if parts else 0))
        except EngineGoneError as error:
            self._died(engine, group, error)
            return
        except TimeoutError:
            for request in group:
                await self._settle(request, failed(504, "the answer was not finished in time", request.envelope.accept))
            return
        if parts is None:
            log.info("%s: %d merged requests are asked one by one (status %d)", engine.name, len(group), status)
            for request in group:
                request.merge = None
            self._holder.again(group)
            return
        for request, part in zip(group, parts, strict=True):
            await self._settle(request, _frame(Whole(200, merged[0].content_type, part), request.envelope))

    def _died(self, engine: Engine, group: Sequence[Request], error: EngineGoneError) -> None:
        log.warning("%s: the engine is gone with %d requests: %s", engine.name, len(group), error)
        left = [request for request in group if not request.begun and not request.gone]
        for request in left:
            request.broken += error.reached
        self._holder.died(engine, left)

    async def _settle(self, request: Request, frame: wire.Frame) -> None:
        try:
            if not request.gone:
                await request.outlet.send(frame)
            await request.ack()
        except nats.errors.Error as error:
            # NATS is away for long, or for good. The request is not acknowledged, so it comes again.
            log.warning("the answer to %s cannot be sent: %s", request.envelope.id, error)
            self._holder.lost([request])
        else:
            self._holder.over(request)


def _frame(whole: Whole, envelope: wire.Envelope) -> wire.Frame:
    """A whole answer in the format that the client takes."""
    body, content_type = whole.body, whole.content_type
    if convert.is_msgpack(envelope.accept) and content_type.startswith(convert.JSON):
        try:
            body, content_type = convert.from_json(body), convert.MSGPACK
        except wire.WireError as error:
            return failed(502, error.message, envelope.accept)
    return wire.Frame(wire.Kind.WHOLE, body, whole.status, content_type)
