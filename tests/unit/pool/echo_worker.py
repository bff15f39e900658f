"""A worker without engines: it takes requests from the queue and answers at once, as the test says or with an echo.

``python tests/unit/pool/echo_worker.py NATS-URL MODEL [keep]`` runs one that gives all requests for a model the same
short answer. It does not read long bodies, and removes them unless it is told to keep them.
"""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import nats.errors
import uvloop
from nats.aio.msg import Msg

from fleetctl.pool import wire
from fleetctl.pool.nats import connect, make_bucket, make_consumer, make_streams
from fleetctl.pool.wire import Envelope, Frame, Kind

PULL = 512
T = TypeVar("T")
Behaviour = Callable[["EchoWorker", Envelope, bytes], AsyncIterator[Frame]]

EMBEDDING = json.dumps(
    {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.1] * 8}],
        "model": "echo",
        "usage": {"prompt_tokens": 8, "total_tokens": 8},
    }
).encode()


async def echo(worker: EchoWorker, envelope: Envelope, body: bytes) -> AsyncIterator[Frame]:
    """The body comes back; a streamed answer in four events."""
    if not envelope.stream:
        yield Frame(Kind.WHOLE, body, 200, envelope.content_type, "echo")
        return
    yield Frame(Kind.BEGIN, b"data: 0\n\n", 200, "text/event-stream", "echo")
    for number in (1, 2):
        yield Frame(Kind.MORE, b"data: %d\n\n" % number)
    yield Frame(Kind.END, b"data: [DONE]\n\n")


async def embedding(worker: EchoWorker, envelope: Envelope, body: bytes) -> AsyncIterator[Frame]:
    """The same short answer for all."""
    yield Frame(Kind.WHOLE, EMBEDDING, 200, "application/json", "echo")


class EchoWorker:
    """One worker for some models."""

    def __init__(self, access: wire.NatsAccess, models: Sequence[str], behaviour: Behaviour = echo) -> None:
        self.behaviour = behaviour
        self.seen: list[tuple[Envelope, int]] = []
        """Requests in the order of their arrival, and the bytes of their bodies."""
        self.cancelled: list[str] = []
        self.kept: dict[str, list[bytes]] = {}
        """Frames of answers, for gateways that ask, by the last token of the subject."""
        self.asked: list[tuple[str, str]] = []
        """Subjects of questions for an answer, and where it should go."""
        self.remember = self.fetches = self.removes = True
        """Whether requests are remembered, and whether long bodies are read, and removed."""
        self._access, self._models = access, models
        self._pulls: list[asyncio.Queue[Msg | None]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, limit: int | None = None) -> None:
        """Begin to take requests. ``limit``: of requests that wait per model, where the streams are made here."""
        self.loop = asyncio.get_running_loop()
        self.client = await connect(self._access, "echo", wait=10, on_change=self._changed)
        self.js = self.client.jetstream()
        await make_streams(self.js, limit=limit)
        self.store = await make_bucket(self.js)
        await self.client.subscribe("cancel.*", cb=self._cancel)
        await self.client.subscribe("ask.*", cb=self._ask)
        for model in self._models:
            await make_consumer(self.js, model)
            self._start(self._pull(model))

    async def stop(self) -> None:
        """Take no more."""
        for task in list(self._tasks):
            task.cancel()
        await self.client.close()

    async def send(self, subject: str, *frames: Frame) -> None:
        """Frames of an answer."""
        for frame in frames:
            await self.client.publish(subject, frame.pack())

    async def _pull(self, model: str) -> None:
        """Keep one standing pull, renewed when it has been filled to a half or has expired."""
        inbox, subject = self.client.new_inbox(), f"$JS.API.CONSUMER.MSG.NEXT.{wire.WORK}.{wire.consumer(model)}"
        come: asyncio.Queue[Msg | None] = asyncio.Queue()
        self._pulls.append(come)
        await self.client.subscribe(inbox, cb=come.put)
        ask = json.dumps({"batch": PULL, "expires": 5_000_000_000}).encode()
        left = 0
        while True:
            if left <= PULL // 2:
                await self.client.publish(subject, ask, inbox)
                left += PULL
            message = await come.get()
            if message is None or (message.headers and "Status" in message.headers):
                left = 0  # the pull has ended
            else:
                left -= 1
                if self.behaviour is embedding:
                    await self._serve(message)
                else:
                    self._start(self._serve(message))

    async def _serve(self, message: Msg) -> None:
        envelope, body = wire.unpack(message.data)
        if envelope.body and self.fetches:
            held = io.BytesIO()
            await self.store.get(envelope.body, held)
            body = held.getvalue()
        if self.remember:
            self.seen.append((envelope, len(body)))
        acked = False
        async for frame in self.behaviour(self, envelope, body):
            data = frame.pack()
            if self.remember:
                self.kept.setdefault(wire.token(envelope.id), []).append(data)
            await self.client.publish(envelope.answer, data)
            if not acked:
                acked = True
                await self.client.publish(message.reply, b"+ACK")
        if not acked:
            await self.client.publish(message.reply, b"+ACK")
        if envelope.body and self.removes:
            await self.store.delete(envelope.body)

    def _changed(self, connected: bool) -> None:
        for come in self._pulls if connected else ():
            come.put_nowait(None)  # the server has forgotten the pulls

    async def _cancel(self, message: Msg) -> None:
        self.cancelled.append(message.subject.removeprefix("cancel."))

    async def _ask(self, message: Msg) -> None:
        self.asked.append((message.subject, message.data.decode()))
        for data in self.kept.get(message.subject.removeprefix("ask."), ()):
            await self.client.publish(message.data.decode(), data)

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def main(url: str, model: str, *keep: str) -> None:
    worker = EchoWorker(wire.NatsAccess((url,)), [model], embedding)
    worker.remember = worker.fetches = False
    worker.removes = not keep
    await worker.start()
    print("ready", flush=True)
    with suppress(nats.errors.Error):
        await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(*sys.argv[1:]))
