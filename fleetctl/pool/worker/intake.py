"""What becomes of a request from the moment it comes to this box: checked, readied, put on its model's desk, ended.

A request is held here from its arrival until it is acknowledged or given back, and JetStream is told every three
seconds that it is in good hands. When the same request comes again meanwhile (the server was restarted, or the signs
were late), the new delivery takes the place of the old one and nothing is done twice.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from fleetctl.pool import wire
from fleetctl.pool.worker import convert, dead, merge
from fleetctl.pool.worker.acked import Acked
from fleetctl.pool.worker.answers import Answers
from fleetctl.pool.worker.beside import Beside
from fleetctl.pool.worker.bodies import Bodies, BodyGoneError
from fleetctl.pool.worker.desk import Desk
from fleetctl.pool.worker.engine import Engine
from fleetctl.pool.worker.pull import Delivered, fields
from fleetctl.pool.worker.request import Delivery, Outlet, Request
from fleetctl.pool.worker.results import ResultOutlet, has_answer
from fleetctl.pool.worker.seen import Seen

log = logging.getLogger(__name__)

MOST_BROKEN = 3
"""Engines that may die of a request. It runs alone before the last."""
MOST_BATCH_DELIVERIES = 10
"""Deliveries of a line of a batch job: it outlives more restarts of boxes than somebody would wait for."""
QUICKLY = 64 * 1024
"""Bytes of MessagePack that become JSON in the time of a few requests."""
ASK = 0.15
"""Seconds that other workers have to say that they have a request that was delivered again."""


def _left(error: BaseException) -> None:
    log.warning("a request was left to its next delivery: %s", error, exc_info=error)


class Intake:
    """All requests that this box holds."""

    def __init__(
        self,
        box: str,
        client: Client,
        js: JetStreamContext,
        bodies: Bodies,
        desks: dict[str, Desk],
        died: Callable[[Engine], None],
    ) -> None:
        self.box = box
        self.answers = Answers(client)
        self.held: dict[str, Request] = {}
        self.coming: Counter[tuple[str, wire.Lane]] = Counter()
        """Requests of a model and lane that are being readied."""
        self.counts: Counter[str] = Counter()
        """What has happened so far, by the names that metrics have."""
        self.draining = False
        self.acked = Acked()
        self._client = client
        self._js = js
        self._bodies = bodies
        self._desks = desks
        self._died = died
        self.on_back: Callable[[Request], None] = lambda request: None
        """Called for each request that has gone back into the queue."""
        self._seen = Seen()
        self.task = Beside(_left).start

    # Arrival

    def take(self, message: Msg, model: str, lane: wire.Lane) -> None:
        """A request from the queue."""
        self.counts["delivered"] += 1
        delivered = fields(message.reply)[0]
        self.counts["redelivered"] += delivered > 1
        delivery = Delivered(self._client, message.reply)
        try:
            envelope, body = wire.unpack(message.data)
        except wire.WireError as error:
            self.task(self._unreadable(model, message.data, delivery, error.message))
            return
        key = wire.token(envelope.id)
        held = self.held.get(key)
        if held is not None:
            self.counts["duplicates"] += 1
            if isinstance(held.delivery, Delivered):
                held.delivery.reply = message.reply
                self.task(delivery.ack() if held.settled else delivery.at_work())
            return
        kept = self.answers.get(key) if lane == "work" else None
        if kept is not None and kept.finished:
            self.counts["duplicates"] += 1
            self.task(self._answered_before(key, envelope, delivery))
            return
        if self._seen.cancelled(key):
            self.counts["cancelled"] += 1
            self.task(self._dropped(envelope, delivery))
            return
        outlet: Outlet
        if lane == "work":
            outlet = self.answers.outlet(envelope, self.box)
        else:
            outlet = ResultOutlet(self._js, envelope, self.box)
        request = Request(envelope, body, model, lane, delivery, outlet)
        if delivered == 1 and not envelope.body and not self._long_to_convert(request):
            self.accept(request)
        else:
            self.held[key] = request
            self.coming[model, lane] += 1
            self.task(self._prepare(request, delivered))

    def accept(self, request: Request, *, converted: bool = False) -> None:
        """A request with all that belongs to it: it waits for an engine. ``converted``: its body is JSON."""
        desk = self._desks[request.model]
        self.held[request.key] = request
        if self.draining or not desk.serves:
            self.task(self.give_back([request]))
            return
        request.content_type = convert.JSON if converted else request.envelope.content_type
        native = desk.speaks_messagepack
        if convert.is_msgpack(request.content_type) and not native:
            try:
                request.body = convert.to_json(request.body)
            except wire.WireError as error:
                self.task(self._failed(request, 400, error.message))
                return
            request.content_type = convert.JSON
        request.cost = desk.pace.cost(request.envelope)
        if desk.merges and not request.envelope.stream:
            packed = native and convert.is_msgpack(request.envelope.accept)
            request.merge = merge.mergeable(request.envelope.path, request.content_type, request.body, packed)
        request.ready = True
        desk.put(request)

    def _long_to_convert(self, request: Request) -> bool:
        """Its MessagePack has to become JSON, and that takes so long that others would wait for it."""
        packed = convert.is_msgpack(request.envelope.content_type) and not self._desks[request.model].speaks_messagepack
        return packed and len(request.body) > QUICKLY

    async def _prepare(self, request: Request, delivered: int) -> None:
        """Find out about one that was delivered before, get a body that lies elsewhere, and convert a long one."""
        converted = False
        try:
            if delivered > 1 and not await self._goes_on(request, delivered):
                return
            if request.envelope.body:
                try:
                    request.body = await self._bodies.fetch(request.envelope)
                except BodyGoneError as error:
                    await self._failed(request, 502, error.message)
                    return
            if self._long_to_convert(request):
                try:
                    request.body = await asyncio.to_thread(convert.to_json, request.body)
                except wire.WireError as error:
                    await self._failed(request, 400, error.message)
                    return
                converted = True
        except BaseException:
            self.lost([request])
            raise
        finally:
            self.coming[request.model, request.lane] -= 1
        if request.gone:
            await request.ack()
            self.over(request)
        else:
            self.accept(request, converted=converted)

    async def _goes_on(self, request: Request, delivered: int) -> bool:
        """Whether a request that was delivered before is to be worked on here."""
        envelope, returned = request.envelope, self._seen.returned(request.key)
        tries = delivered - returned.times
        most = wire.MOST_DELIVERIES if request.lane == "work" else MOST_BATCH_DELIVERIES
        request.broken = returned.broken
        elsewhere = await self._elsewhere(envelope)
        if elsewhere == b"work":
            self.held.pop(request.key, None)
            self.answers.forget(request.key)
            return False
        if elsewhere == b"done" or (request.lane == "batch" and await has_answer(self._js, envelope)):
            self.counts["duplicates"] += 1
            await request.ack()
            self.over(request)
            return False
        if request.broken >= MOST_BROKEN or tries > most:
            reason = f"it was begun {tries - 1} times, and no worker came to its end"
            if request.broken >= MOST_BROKEN:
                reason = f"{request.broken} engines died while they worked on it"
            await self.bury(request, reason)
            return False
        request.alone = request.broken == MOST_BROKEN - 1 or tries == most
        return True

    async def _elsewhere(self, envelope: wire.Envelope) -> bytes:
        """What another worker says of a request: ``work``, ``done``, or nothing."""
        try:
            return (await self._client.request(wire.ask_subject(envelope.id), b"", timeout=ASK)).data
        except nats.errors.Error:
            return b""

    async def _answered_before(self, key: str, envelope: wire.Envelope, delivery: Delivery) -> None:
        await self.answers.asked(key, envelope.answer)
        await delivery.ack()

    async def _dropped(self, envelope: wire.Envelope, delivery: Delivery) -> None:
        await delivery.ack()
        if envelope.body:
            await self._bodies.remove(envelope)

    async def _unreadable(self, model: str, data: bytes, delivery: Delivery, reason: str) -> None:
        log.warning("%s: %s", model, reason)
        await dead.keep(self._js, model, data, reason, "")
        await delivery.ack()

    # What calls end in (calls.Holder)

    def died(self, engine: Engine, requests: Sequence[Request]) -> None:
        """An engine died with these at work. Each is tried again, and alone before the last time."""
        self._died(engine)
        again = []
        for request in requests:
            if request.broken >= MOST_BROKEN:
                self.task(self.bury(request, f"{request.broken} engines died while they worked on it"))
                continue
            request.alone = request.broken == MOST_BROKEN - 1
            if request.alone:
                request.merge = None
            again.append(request)
        self.again(again)

    def again(self, requests: Sequence[Request]) -> None:
        """These are asked once more: here where an engine serves their model, else elsewhere."""
        if not requests:
            return
        desk = self._desks[requests[0].model]
        if desk.serves and not self.draining:
            desk.put_first(requests)
        else:
            self.task(self.give_back([*requests, *desk.clear()]))

    def over(self, request: Request) -> None:
        """A request is finished with."""
        self.held.pop(request.key, None)
        kept = self.answers.get(request.key)
        if kept is not None and not kept.finished:  # its client has gone: nobody waits for the rest
            self.answers.forget(request.key)
        self.counts["finished"] += 1
        if isinstance(request.delivery, Delivered):
            self.acked.note(request.lane, fields(request.delivery.reply)[1], request.envelope.id)
        if request.envelope.body:
            self.task(self._bodies.remove(request.envelope))

    def lost(self, requests: Sequence[Request]) -> None:
        """Something went wrong with these that nobody expected. They are not acknowledged, so they come again."""
        for request in requests:
            self.held.pop(request.key, None)
            self.answers.forget(request.key)

    async def give_back(self, requests: Sequence[Request]) -> None:
        """What this box cannot do goes back into the queue, first in line; the other workers learn that it is not to
        blame, or how much."""
        requests = [request for request in requests if not request.settled]
        told = {request.key: request.broken for request in requests if isinstance(request.delivery, Delivered)}
        if told:
            await self._client.publish(wire.STATE, json.dumps({"returned": told}).encode())
        for request in requests:
            self.counts["returned"] += 1
            request.settled = True
            self.held.pop(request.key, None)
            self.answers.forget(request.key)
            await request.delivery.back()
            self.on_back(request)

    async def bury(self, request: Request, reason: str) -> None:
        """Give a request up: keep it for whoever looks into it, tell the client, and have done with it."""
        log.error("%s: request %s is given up: %s", request.model, request.envelope.id, reason)
        self.counts["dead"] += 1
        body = b"" if request.envelope.body else request.body
        data = request.envelope.pack(body)
        await dead.keep(self._js, request.model, data, reason, request.envelope.id)
        await self._failed(request, 502, f"the request is given up: {reason}")

    async def _failed(self, request: Request, status: int, message: str) -> None:
        await request.fail(status, message)
        self.over(request)

    # What gateways and other workers say

    async def cancel(self, message: Msg) -> None:
        """The client of a request has gone."""
        key = message.subject.partition(".")[2]
        request = self.held.get(key)
        if request is None:
            self._seen.cancel(key)
            return
        await self.leave(request)

    async def leave(self, request: Request) -> None:
        """Nobody waits for the answer to a request that is held here."""
        self.counts["cancelled"] += 1
        request.gone = True
        if request.call is not None:
            request.call.cancel()
        elif request.ready and self._desks[request.model].remove(request):
            await request.ack()
            self.over(request)
        else:
            await request.ack()

    async def ask(self, message: Msg) -> None:
        """A gateway asks for an answer (the payload is where), or a worker whether anybody has a request."""
        key = message.subject.partition(".")[2]
        request, kept = self.held.get(key), self.answers.get(key)
        if message.data:
            await self.answers.asked(key, message.data.decode("latin-1"))
        elif message.reply and request is not None and request.ready:
            await message.respond(b"work")
        elif message.reply and request is None and kept is not None and kept.finished:
            await message.respond(b"done")

    def returned(self, told: dict[str, int]) -> None:
        """A worker (perhaps this one) has given requests back."""
        for key, broken in told.items():
            self._seen.give_back(key, broken)
