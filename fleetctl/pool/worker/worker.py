"""The worker of a box: one connection to the queue, one desk per model, and what keeps them supplied.

For each model there is one *pump*: whenever something has changed (a request has come or ended, an engine was loaded or
died) it looks how much room there is, and asks the queue for as much.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from fleetctl.pool import nats as queue
from fleetctl.pool import wire
from fleetctl.pool.http import Server
from fleetctl.pool.worker.bodies import Bodies, bucket_of
from fleetctl.pool.worker.calls import Calls
from fleetctl.pool.worker.demand import Waiting, look
from fleetctl.pool.worker.desk import Desk
from fleetctl.pool.worker.drained import follow
from fleetctl.pool.worker.drained import look as look_for_note
from fleetctl.pool.worker.engine import Engine
from fleetctl.pool.worker.intake import Intake
from fleetctl.pool.worker.loading import Loading
from fleetctl.pool.worker.others import elsewhere
from fleetctl.pool.worker.pull import Delivered, Pull
from fleetctl.pool.worker.queued import Queued
from fleetctl.pool.worker.request import Request
from fleetctl.pool.worker.rest import Rest
from fleetctl.pool.worker.signs import alive, at_work
from fleetctl.pool.worker.state import state
from fleetctl.pool.worker.units import Units

log = logging.getLogger(__name__)

LANES: tuple[wire.Lane, ...] = ("work", "batch")
LOOK_WORK = 0.5
"""Seconds between two looks at what waits for a model that is not loaded."""
LOOK_BATCH = 3.0
LOOKS_PER_SECOND = 50
"""At most, for all models together."""
RECOVER = 3.0
"""Seconds that a server which was started again has to take in the acknowledgements that were kept for it."""
DRAIN = 60.0
"""Seconds in which requests at work may finish when the worker is stopped."""


class Worker:
    """Everything of one box."""

    def __init__(self, config: wire.WorkerConfig, units: Units) -> None:
        self.config = config
        self.ready = False
        """It has been connected, and takes requests."""
        self.connected = False
        self.drained = False
        """An operator has taken the box out."""
        self.drained_note: Path | None = None
        """The file that says so; None: nobody does."""
        self.closed = asyncio.Event()
        """The connection is over for good."""
        self.desks: dict[str, Desk] = {}
        self.bucket = bucket_of(config.s3)
        """Where gateways put long bodies; None: into the object store."""
        self.client: Client
        self.js: JetStreamContext
        self.intake: Intake
        self._calls: Calls
        self._units = units
        self._pulls: dict[tuple[str, wire.Lane], Pull] = {}
        self._waiting: dict[tuple[str, wire.Lane], Waiting] = {}
        self._wake: dict[str, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        several = Counter(one.model for one in config.engines)
        for one in config.engines:
            desk = self.desks.setdefault(one.model, Desk(one.model, self._start))
            name = one.model if several[one.model] == 1 else f"{one.model}@{one.unit}"
            desk.engines.append(Engine(one, name, desk.pace))
        engines = [engine for desk in self.desks.values() for engine in desk.engines]
        self.loading = Loading(config.memory, engines, units, self._waiting_for, self._changed, self._elsewhere)
        self.queue = Queued(tuple(self.desks))
        self._ending = False
        control = Path(config.control) if config.control else None
        self._server = Server(Rest(self, elsewhere=config.control).handle)
        self._control = (control, Server(Rest(self).handle)) if control else None

    def _start(self, engine: Engine, group: Any) -> None:
        self._calls.start(engine, group)

    # Begin and end

    async def begin(self) -> None:
        """Connect, find what runs, take requests. Raises QueueError and OSError."""
        for model in self.desks:
            self._wake[model] = asyncio.Event()
        if self._control is not None:
            path, server = self._control
            await server.listen_unix(path)
        await self._server.listen(self.config.listen.host, self.config.listen.port)
        self.client = await queue.connect(
            self.config.nats, f"worker {self.config.box}", on_change=self._on_change, on_closed=self.closed.set
        )
        self.js = self.client.jetstream()
        self.intake = Intake(
            self.config.box, self.client, self.js, Bodies(self.js, self.bucket), self.desks, self.loading.died
        )
        self.intake.on_back = self._came_back
        self._calls = Calls(self.intake, self._changed)
        self.connected = True
        await self._make()
        for model, desk in self.desks.items():
            for lane in LANES:
                self._pulls[model, lane] = Pull(
                    self.client, model, lane, self._taker(model, lane), self._wake[model].set
                )
                self._waiting[model, lane] = Waiting()
            desk.more_comes = self._more_comes(desk.model)
        await self.client.subscribe("cancel.*", cb=self.intake.cancel)
        await self.client.subscribe("ask.*", cb=self.intake.ask)
        await self.client.subscribe(wire.STATE, cb=self._state)
        look_for_note(self)
        await self.loading.begin()
        self.ready = True
        loops = [self.loading.run(), at_work(self.intake), alive(self.intake), self._look(), self._remind()]
        loops += [follow(self), *(self._pump(desk) for desk in self.desks.values())]
        if self.bucket is not None:
            loops.append(self.bucket.watch(sweeps=False))
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    async def _make(self) -> None:
        """Streams and consumers; what is there already stays as it is."""
        while True:
            try:
                await queue.make_streams(self.js, self.config.nats.replicas)
                await queue.make_bucket(self.js, self.config.nats.replicas)
                for model in self.desks:
                    for lane in LANES:
                        await queue.make_consumer(self.js, model, lane)
                return
            except queue.QueueError as error:
                log.warning("%s", error.message)
            await asyncio.sleep(1.0)

    def failed(self) -> asyncio.Task[Any] | None:
        """A part of the worker that has ended though it should not have."""
        return next((task for task in self._tasks if task.done()), None)

    async def end(self, limit: float = DRAIN) -> None:
        """Take no more, give back what has not begun, let the rest finish for so many seconds, and give that back too.

        A stream that is not over by then is broken off: its request is acknowledged, and is not repeated."""
        self._ending = self.intake.draining = True
        for desk in self.desks.values():
            await self.intake.give_back(desk.clear())
        until = time.monotonic() + limit
        while time.monotonic() < until and (self.intake.held or self._outstanding()):
            await asyncio.sleep(0.02)
        for request in list(self.intake.held.values()):
            if request.call is not None:
                request.call.cancel()
            if request.begun:
                await request.fail(502, "the worker was stopped before the answer was finished")
        await self.intake.give_back(list(self.intake.held.values()))
        servers = [self._server, *([self._control[1]] if self._control else [])]
        await asyncio.gather(*(server.stop(1.0) for server in servers))
        for task in self._tasks:
            task.cancel()
        with suppress(nats.errors.Error):
            await self.client.flush()
        await self.client.close()

    def drain(self, drained: bool) -> None:
        """Take nothing more until told otherwise: what has not begun goes back, what runs is finished, engines stay."""
        self.drained, self.loading.held = drained, drained
        self.intake.draining = drained or self._ending
        for desk in self.desks.values():
            if drained:
                self.intake.task(self.intake.give_back(desk.clear()))
            self._wake[desk.model].set()

    @property
    def held(self) -> int:
        """Requests that are here; one at least while the queue may still send something that was asked for."""
        return len(self.intake.held) or int(self.intake.draining and self._outstanding())

    def _outstanding(self) -> bool:
        """Whether the queue may still send something."""
        return self.client.is_connected and any(pull.outstanding() for pull in self._pulls.values())

    # The queue

    def _came_back(self, request: Request) -> None:
        """It waits for its model again, and the queue does not count it among those."""
        if isinstance(request.delivery, Delivered):
            self._waiting[request.model, request.lane].came_back(request.delivery.number)

    def queued(self, model: str, lane: wire.Lane) -> int:
        """Requests of a model that wait in the queue, as last heard."""
        return self._pulls[model, lane].waiting if self.desks[model].serves else self._waiting[model, lane].requests

    def oldest(self, model: str) -> float:
        """Seconds that the oldest of those has waited which somebody waits for, as far as it is known here."""
        now, line = time.monotonic(), self.desks[model].lines["work"].requests
        return now - line[0].arrived if line else self._waiting[model, "work"].oldest(now)

    def desk_of(self, name: str) -> Desk | None:
        """The desk of a model, by its key or a name that clients use."""
        for desk in self.desks.values():
            if name == desk.model or any(name in engine.config.served_as for engine in desk.engines):
                return desk
        return None

    def _taker(self, model: str, lane: wire.Lane) -> Callable[[Msg], None]:
        wake = self._wake[model]

        def take(message: Msg) -> None:
            self.intake.take(message, model, lane)
            wake.set()

        return take

    def _more_comes(self, model: str) -> Callable[[wire.Lane], bool]:
        return lambda lane: self._pulls[model, lane].waiting > 0 and self._pulls[model, lane].outstanding() > 0

    def _changed(self, engine: Engine) -> None:
        """An engine has room, or begins or ends to serve."""
        desk = self.desks[engine.config.model]
        desk.hold(lane for lane in LANES if self._pulls[desk.model, lane].waiting)
        desk.feed()
        if not desk.serves and any(desk.lines.values()):
            self.intake.task(self.intake.give_back(desk.clear()))
        self._wake[desk.model].set()

    async def _pump(self, desk: Desk) -> None:
        wake = self._wake[desk.model]
        while True:
            await wake.wait()
            wake.clear()
            try:
                await self._supply(desk)
            except nats.errors.Error as error:
                log.info("%s: pulling: %s", desk.model, error or type(error).__name__)
                desk.release(*desk.awaited)
                await asyncio.sleep(0.2)

    async def _remind(self) -> None:
        """A standing pull may have ended without a word."""
        while True:
            await asyncio.sleep(1.0)
            for wake in self._wake.values():
                wake.set()

    async def _supply(self, desk: Desk) -> None:
        """Ask the queue for what there is room for."""
        work, batch = self._pulls[desk.model, "work"], self._pulls[desk.model, "batch"]
        if not desk.serves or self.intake.draining or not self.client.is_connected:
            desk.release(*desk.awaited)
            return  # what was asked for before may still come, and is given back at once
        await work.begin()
        await batch.begin()
        if work.missing or batch.missing:
            work.missing = batch.missing = False
            with suppress(queue.QueueError):
                await queue.make_consumer(self.js, desk.model, "work")
                await queue.make_consumer(self.js, desk.model, "batch")
        desk.release(*(one.lane for one in (work, batch) if desk.awaited.get(one.lane) and not one.looking))
        await self._ask(desk, work)
        if not work.waiting and not desk.lines["work"]:
            await self._ask(desk, batch)
        desk.awaited |= {one.lane: True for one in (work, batch) if one.lane in desk.awaited and one.looking}
        desk.release(*(lane for lane, asked in desk.awaited.items() if not asked))

    async def _ask(self, desk: Desk, pull: Pull) -> None:
        asked = pull.outstanding() + self.intake.coming[desk.model, pull.lane]
        wanted = desk.wanted(pull.lane) - asked
        missing = desk.missing(pull.lane, desk.choice(pull.waiting)) - asked
        if (wanted > 0 or pull.lane in desk.awaited) and desk.merges and not pull.empty:
            # A call begins with all that waits. Only if nothing does, a pull stands: one that is left over when the
            # call has begun would bring what an idle engine could begin with.
            if not pull.looking and max(wanted, missing) > 0:
                await pull.ahead(max(wanted, missing))
        elif wanted > 0:
            await pull.stand(wanted)
        elif pull.waiting and (ahead := desk.ahead(pull.lane)) and missing >= max(1, ahead // 4):
            await pull.ahead(min(missing, pull.waiting))

    def _on_change(self, connected: bool) -> None:
        self.connected = connected
        if connected:
            self.intake.task(self._after_restart())
        for pull in self._pulls.values():
            pull.lost()
        for wake in self._wake.values():
            wake.set()

    async def _after_restart(self) -> None:
        """The server may have another store, or have forgotten the last seconds."""
        await self._make()
        await asyncio.sleep(RECOVER)
        await self.intake.acked.remove(self.js, lambda: self.connected)

    # What is done all the time

    async def _look(self) -> None:
        """What waits for models that are not loaded here."""
        batch_at = 0.0
        while True:
            began = time.monotonic()
            lanes = LANES if began >= batch_at else LANES[:1]
            if len(lanes) > 1:
                batch_at = began + LOOK_BATCH
            away = [desk.model for desk in self.desks.values() if not desk.serves]
            for model in away:
                for lane in lanes:
                    await look(self.js, model, lane, self._waiting[model, lane])
            await asyncio.sleep(max(LOOK_WORK, len(away) / LOOKS_PER_SECOND))

    def _waiting_for(self, engine: Engine) -> Waiting:
        """What waits for an engine: in the queue where it is not loaded; else what the box has not begun."""
        model, now = engine.config.model, time.monotonic()
        desk = self.desks[model]
        if desk.serves:
            line = desk.lines["work"].requests
            waits = len(line) + self._pulls[model, "work"].waiting
            return Waiting(waits, line[0].arrived if line else now)
        work, batch = self._waiting[model, "work"], self._waiting[model, "batch"]
        if work.requests or not batch.requests:
            return work
        # Nobody waits for a batch job: what is idle goes for it, and what is used does not.
        most = self.loading.rules.busy * 0.9
        return Waiting(batch.requests, now - min(batch.oldest(now), most))

    # Other workers

    async def _state(self, message: Msg) -> None:
        """Asked for the state, or told what another worker has given back."""
        if message.reply:
            await message.respond(json.dumps(state(self)).encode())
            return
        try:
            told = json.loads(message.data)["returned"]
            self.intake.returned({str(key): int(broken) for key, broken in told.items()})
        except (ValueError, KeyError, TypeError, AttributeError):
            log.debug("a message at %s cannot be read", wire.STATE)

    async def _elsewhere(self, engine: Engine) -> bool:
        return await elsewhere(self.client, self.config.box, engine)
