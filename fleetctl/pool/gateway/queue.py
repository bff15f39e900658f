"""A gateway's side of the queue: requests published and confirmed, answers taken in, clients' leaving passed on.

What may go wrong, and what is done about it:

- *NATS is away.* Publishing waits for it a moment, then the client gets 503. What was sent but not confirmed before the
  connection broke is sent again, under the same id, so that it is stored once.
- *Answers may have been lost* while the connection was away, as core NATS keeps nothing: workers are asked for them.
  One that had begun cannot be continued and is ended.
- *Another gateway published the same request* and died; HAProxy gave it to this one. The queue says that it knows the
  id, and the workers are asked for the answer until one has it. If none has, and the queue has had the request
  acknowledged, nobody ever will: somebody uses an id again whose request was cancelled, or answered long ago.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from contextlib import suppress
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import Header
from nats.js.errors import APIError

from fleetctl.pool import wire
from fleetctl.pool.gateway.answers import ASK_EVERY, NEVER, Answer
from fleetctl.pool.gateway.demand import Demand
from fleetctl.pool.gateway.refusals import Refusal, broke_off, late, queue_away, queue_full, used_id
from fleetctl.pool.nats import is_full

_ID = str(Header.MSG_ID.value)
log = logging.getLogger(__name__)

LOOK_EVERY = 0.1
"""Seconds between two looks at all answers."""
AWAY = 10.0
"""Seconds that a request waits for NATS to come back and to confirm it."""
SEND_EVERY = 2.0
"""Seconds between two publications of a request that is not confirmed: whoever kept the stream may have died."""
SILENT = 10.0
"""Seconds without a frame after which an answer that had begun is taken for broken off."""
ASK_MOST = 5.0
"""Seconds between two questions at most, for an answer that may have been lost: each time twice as long."""


class Queue:
    """All requests under way at this gateway."""

    def __init__(self, gateway: str) -> None:
        self.answers: dict[str, Answer] = {}
        self.connected = asyncio.Event()
        self.ready = False
        """The streams are there, and this gateway hears what comes for it."""
        self.over = False
        """The connection is gone for good: only a new process helps."""
        self.unexpected = 0
        """Frames that nobody waited for any more."""
        self.short_at = -NEVER
        """When the last request with a short body came, by the clock of the event loop."""
        self._gateway = gateway
        self._loop = asyncio.get_running_loop()
        self._client: Client
        self._demand: Demand
        self._acks: dict[str, Answer] = {}
        self._count = 0
        self._prefix = ""
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, client: Client) -> None:
        """Begin to hear answers on a connection."""
        self._client, self._demand = client, Demand(client)
        inbox = client.new_inbox()
        self._prefix = f"{inbox}."
        await client.subscribe(f"{inbox}.*", cb=self._confirmed, pending_bytes_limit=0)
        await client.subscribe(wire.answers_of(self._gateway), cb=self._frame, pending_bytes_limit=0)
        await client.flush()
        self._start(self._look())
        self.ready = True
        self.changed(client.is_connected)

    async def close(self) -> None:
        """Hear nothing more."""
        for task in list(self._tasks):
            task.cancel()

    def changed(self, connected: bool) -> None:
        """The connection has come back, or gone."""
        if not connected:
            self.connected.clear()
            for answer in list(self.answers.values()):
                if answer.begun:
                    answer.fail(broke_off("the gateway lost its connection to the queue"))
        elif self.ready:
            self.connected.set()
            self._start(self._send_again())

    # Requests

    async def reachable(self, seconds: float) -> None:
        """Return once NATS can be had. Raises Refusal when that takes too long, or ``seconds``."""
        if not self.connected.is_set():
            try:
                await asyncio.wait_for(self.connected.wait(), min(AWAY, seconds))
            except TimeoutError:
                raise queue_away("NATS is not connected") from None

    async def publish(self, envelope: wire.Envelope, body: bytes, seconds: float) -> Answer:
        """Put a request into the queue; where its answer will be. Raises Refusal.

        ``seconds``: how long it may take in all, as its client is told when that is over.
        """
        await self.reachable(seconds)
        answer = Answer(self._loop, envelope.id, envelope.answer, envelope.model)
        if answer.key in self.answers:
            message = "a request with the same x-request-id and the same body is under way here"
            raise Refusal(409, message, code="duplicate_request", param="x-request-id")
        now = self._loop.time()
        answer.message = envelope.pack(body)
        answer.seconds, answer.sent, answer.heard = seconds, now, now
        answer.deadline = now + envelope.deadline / 1000 - time.time()
        answer.look_at = min(answer.deadline, now + SEND_EVERY)
        self.answers[answer.key] = answer
        if body:
            self.short_at = now
        await self._send(answer)
        return answer

    async def cancel(self, answer: Answer) -> None:
        """Tell whoever has the request that nobody wants its answer."""
        with suppress(nats.errors.Error):
            await self._client.publish(wire.cancel_subject(answer.identity))

    def done(self, answer: Answer) -> None:
        """Nobody waits for this answer any more."""
        self.answers.pop(answer.key, None)
        self._acks.pop(answer.reply, None)

    async def _send(self, answer: Answer) -> None:
        if answer.message is None or self.answers.get(answer.key) is not answer:
            return
        self._acks.pop(answer.reply, None)
        self._count += 1
        answer.reply = f"{self._prefix}{self._count:x}"
        self._acks[answer.reply] = answer
        headers = {_ID: answer.identity}
        try:
            await self._client.publish(wire.subject(answer.model), answer.message, answer.reply, headers)
        except (nats.errors.Error, OSError) as error:
            answer.fail(queue_away(str(error) or type(error).__name__))

    async def _send_again(self) -> None:
        """After a pause in the connection: what was not confirmed, and questions for what may have been lost."""
        self._acks.clear()
        for answer in list(self.answers.values()):
            if answer.message is not None:
                answer.sent_again = True
                await self._send(answer)
            elif not answer.begun:
                answer.ask(self._loop.time() + ASK_EVERY, growth=2)

    # What comes

    async def _confirmed(self, message: Msg) -> None:
        answer = self._acks.pop(message.subject, None)
        if answer is None or answer.message is None:
            return
        data = message.data
        if b'"error"' not in data and b'"duplicate"' not in data and data:
            self._is_stored(answer)
            return
        told = json.loads(data) if data else {}
        if "error" in told:
            answer.fail(self._refused(answer, told["error"]))
        elif not data:  # nobody keeps the stream at this moment; it is tried again until that takes too long
            self._loop.call_later(0.25, lambda: self._start(self._send(answer)))
        else:
            self._is_stored(answer)
            if not answer.sent_again:
                answer.duplicate, answer.duplicate_of = True, int(told.get("seq", 0))
                answer.ask(self._loop.time(), growth=1)

    def _is_stored(self, answer: Answer) -> None:
        answer.message = None
        answer.look_at = answer.deadline
        if answer.sent_again:
            answer.ask(self._loop.time() + ASK_EVERY, growth=2)

    def _refused(self, answer: Answer, told: dict[str, Any]) -> Refusal:
        error = APIError(told.get("code"), told.get("description"), told.get("err_code"))
        if is_full(error):
            return queue_full(answer.model, self._demand.seconds(answer.model))
        log.warning("the queue refuses a request for %s: %s", answer.model, error.description)
        return queue_away(error.description or "JetStream refuses it")

    async def _frame(self, message: Msg) -> None:
        answer = self.answers.get(message.subject.rpartition(".")[2])
        if answer is None:
            self.unexpected += 1
            return
        try:
            frame = wire.unpack_frame(message.data)
        except wire.WireError as error:
            answer.fail(broke_off(str(error)))
            return
        answer.put(frame, self._loop.time())
        if frame.kind in (wire.Kind.WHOLE, wire.Kind.END):
            self._demand.answered(answer.model)

    # What does not come

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            now = self._loop.time()
            for answer in list(self.answers.values()):
                if answer.begun:
                    if now - answer.heard > SILENT:
                        answer.fail(broke_off(f"nothing came for {SILENT:g} s"))
                elif answer.look_at <= now:
                    await self._look_at(answer, now)

    async def _look_at(self, answer: Answer, now: float) -> None:
        if now >= answer.deadline:
            answer.fail(late(answer.model, answer.seconds))
        elif answer.message is not None:
            answer.look_at = min(answer.deadline, now + SEND_EVERY)
            if now - answer.sent >= AWAY:
                answer.fail(queue_away("JetStream does not confirm it"))
            elif self.connected.is_set():
                answer.sent_again = True
                await self._send(answer)
        elif answer.ask_at <= now:
            with suppress(nats.errors.Error):
                await self._client.publish(wire.ask_subject(answer.identity), answer.subject.encode())
            if answer.duplicate_of and answer.asked:
                self._start(self._over_and_done(answer))
            answer.asked = True
            answer.ask_at = now + answer.ask_every
            answer.ask_every = min(answer.ask_growth * answer.ask_every, ASK_MOST)
            answer.look_at = min(answer.deadline, answer.ask_at)
        else:
            answer.look_at = answer.deadline

    async def _over_and_done(self, answer: Answer) -> None:
        """Fail a repeated request that nobody answers to, once it is sure that the first one is finished with."""
        finished = await self._demand.acknowledged(answer.model)
        if 0 < answer.duplicate_of <= finished and not answer.begun:
            answer.fail(used_id())

    def _start(self, coroutine: Any) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
