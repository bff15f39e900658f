"""A stand-in for the workers of a pool: takes batch lines of the model ``m`` and answers with what it was asked."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from nats.errors import Error
from nats.js import JetStreamContext
from nats.js.errors import APIError

from fleetctl.pool import nats, wire
from fleetctl.pool.batch.results import is_answered, keep


class Worker:
    """Answers lines until it ends; ``worked`` has the id of each that it answered, as often as it did."""

    def __init__(self, access: wire.NatsAccess, *, pace: float = 0.0, status: int = 200, long: int = 0) -> None:
        self.access, self.pace, self.status, self.long = access, pace, status, long
        self.worked: list[str] = []
        self.over = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self.thread.start()

    def end(self) -> None:
        """No more lines are taken."""
        self.over.set()
        self.thread.join(20)

    async def _serve(self) -> None:
        client = await nats.connect(self.access, "worker", wait=10)
        js = client.jetstream(timeout=1)
        pull = await js.pull_subscribe_bind(durable=wire.consumer("m", "batch"), stream=wire.BATCH)
        while not self.over.is_set():
            try:
                for message in await pull.fetch(10, timeout=0.2):
                    if self.over.is_set():
                        await message.nak()
                        continue
                    envelope, body = wire.unpack(message.data)
                    if envelope.body:
                        body = (await (await js.object_store(wire.BODIES)).get(envelope.body)).data or b""
                    if message.metadata.num_delivered > 1 and await is_answered(js, envelope):
                        await message.ack()
                        continue
                    await asyncio.sleep(self.pace)
                    usage = {"prompt_tokens": 3, "completion_tokens": 2}
                    told = {"asked": json.loads(body), "usage": usage, "filler": "x" * self.long}
                    data = json.dumps(told).encode()
                    await self._keep(js, envelope, wire.Frame(wire.Kind.WHOLE, data, self.status, worker="spark1"))
                    self.worked.append(envelope.id)
                    await message.ack()
            except (Error, APIError, TimeoutError):
                await asyncio.sleep(0.05)
        await client.close()

    async def _keep(self, js: JetStreamContext, envelope: wire.Envelope, frame: wire.Frame) -> None:
        while True:
            try:
                await keep(js, envelope, frame)
                return
            except (Error, APIError, TimeoutError):
                if self.over.is_set():
                    raise
                await asyncio.sleep(0.05)


@contextmanager
def working(access: wire.NatsAccess, *, pace: float = 0.0, status: int = 200, long: int = 0) -> Iterator[Worker]:
    """A worker for the length of a with block."""
    worker = Worker(access, pace=pace, status=status, long=long)
    try:
        yield worker
    finally:
        worker.end()


def prepare(access: wire.NatsAccess) -> None:
    """What programs of a pool make in NATS before there is any job."""

    async def made() -> None:
        client = await nats.connect(access, "test", wait=10)
        js = client.jetstream(timeout=1)
        await nats.make_streams(js)
        await nats.make_consumer(js, "m", "batch")
        await nats.make_bucket(js)
        await client.close()

    asyncio.run(made())


def openai(*inputs: str) -> bytes:
    """A file in the batch format with one embedding a line, named ``c1`` and so on."""
    rows = [
        {"custom_id": f"c{number}", "method": "POST", "url": "/v1/embeddings", "body": {"model": "m", "input": text}}
        for number, text in enumerate(inputs, start=1)
    ]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)
