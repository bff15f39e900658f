"""Lines of batch jobs for models that are not in the pool: pulled when the proxy has room, sent to it like any request.

The proxy holds, retries and drains as it does for everybody, so a line outlives an engine that stops, a cutover and a
restart of the box. It is acknowledged when its answer is stored. One that finds no engine goes back into the queue; one
that engines fail at is tried :data:`TRIES` times and then has the error for its answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import Client as Nats
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.errors import APIError, NotFoundError

from fleetctl.errors import FleetError
from fleetctl.pool import wire
from fleetctl.pool.batch.away import Patience, is_away
from fleetctl.pool.batch.results import is_answered, keep
from fleetctl.pool.batch.room import PAGE, Proxied, room
from fleetctl.pool.batch.standby import has_address
from fleetctl.pool.client import Client, EngineGoneError
from fleetctl.pool.nats import make_consumer, make_streams, password

log = logging.getLogger(__name__)

LOOK_EVERY = 0.5
"""Seconds between two looks at the proxy while it has no room."""
SETTLE = 0.1
"""Seconds until lines that were taken count at the proxy."""
LISTEN = 5.0
"""Seconds of one pull."""
TRIES = 3
AGAIN = 2.0
"""Seconds before the second try, twice as many before the third."""
LATER = 10.0
"""Seconds until a line comes back that found no engine."""
GRACE = 60.0
"""Seconds in which lines at work may be finished when the runner is to end."""

_NO_ENGINE = frozenset({408, 425, 429, 503})
_FAILED = frozenset({500, 502, 504})


@dataclass(frozen=True)
class RunnerConfig:
    """Everything that a runner is told."""

    box: str
    nats: wire.NatsAccess
    address: str
    """The proxy as clients reach it: http://HOST:PORT, https://…, or unix:PATH."""
    models: tuple[Proxied, ...]
    key_file: str = ""
    """A key that the proxy takes; empty: it asks for none."""
    floating: str = ""
    """The address of a proxy on several boxes, each of which has a runner: it takes lines while its box has it.
    Empty: always."""


class Runner:
    """Takes lines for some models until it is stopped."""

    def __init__(self, config: RunnerConfig, client: Nats) -> None:
        self._config = config
        self._js = client.jetstream()
        self._proxy = Client(config.address, tls=_tls(config.address))
        self._told = True
        self._here = not config.floating
        self._key = password(config.key_file) if config.key_file else ""
        self._stopping = asyncio.Event()
        self.stopped = False
        self._at_work: dict[str, asyncio.Task[None]] = {}

    def stop(self) -> None:
        """Take no more lines; :meth:`run` returns when those at work are answered, or back in the queue."""
        self._stopping.set()

    async def run(self) -> None:
        """Until it is stopped."""
        await Patience().call(lambda: make_streams(self._js, self._config.nats.replicas))
        try:
            async with asyncio.TaskGroup() as group:
                for model in self._config.models:
                    group.create_task(self._take(model))
        except* FleetError as several:
            raise several.exceptions[0] from None
        await self._stopping.wait()  # without a model there is nothing to do, and no end
        if self._at_work:
            await asyncio.wait(self._at_work.values(), timeout=GRACE)
        for task in list(self._at_work.values()):
            task.cancel()
        await asyncio.gather(*self._at_work.values(), return_exceptions=True)
        self._proxy.close()
        self.stopped = True

    async def _take(self, model: Proxied) -> None:
        await Patience().call(lambda: make_consumer(self._js, model.model, "batch"))
        name = wire.consumer(model.model, "batch")
        pull = await Patience().call(lambda: self._js.pull_subscribe_bind(durable=name, stream=wire.BATCH))
        mine: set[str] = set()
        while not self._stopping.is_set():
            mine &= set(self._at_work)
            most = room(await self._page(), model, len(mine)) if self._is_turn() else 0
            messages = await _fetched(pull, most) if most else []
            for message in messages:
                mine.add(self._begin(message))
            await self._pause(SETTLE if messages else LOOK_EVERY)

    def _begin(self, message: Msg) -> str:
        try:
            envelope, body = wire.unpack(message.data)
        except wire.WireError as error:
            log.error("%s: %s", message.subject, error)
            return ""
        # One that comes again while it is at work here was not heard of for a while: NATS was away.
        if envelope.id not in self._at_work:
            task = asyncio.create_task(self._work(message, envelope, body))
            self._at_work[envelope.id] = task
            task.add_done_callback(lambda _: self._at_work.pop(envelope.id, None))
        return envelope.id

    async def _work(self, message: Msg, envelope: wire.Envelope, body: bytes) -> None:
        """Answer one line, and see to it that it is either acknowledged or comes again."""
        alive = asyncio.create_task(_alive(message))
        try:
            if message.metadata.num_delivered > 1 and await Patience().call(lambda: is_answered(self._js, envelope)):
                frame = None
            else:
                frame = await self._answer(envelope, body)
                if frame is None:
                    await message.nak(delay=LATER)
                    return
                await Patience().call(lambda: keep(self._js, envelope, frame))
            await message.ack()
            await self._remove_body(envelope)
        except asyncio.CancelledError:
            with contextlib.suppress(nats.errors.Error):
                await message.nak()
            raise
        except Exception as error:
            # It comes again after ACK_WAIT; one line must not end all others.
            log.error("%s: %s: %s", envelope.id, type(error).__name__, error)
        finally:
            alive.cancel()

    async def _answer(self, envelope: wire.Envelope, body: bytes) -> wire.Frame | None:
        """The answer, or the error that it is to have; None: no engine is there now."""
        if envelope.body:
            try:
                bucket = await self._js.object_store(wire.BODIES)
                body = (await bucket.get(envelope.body)).data or b""
            except NotFoundError:
                return _error(500, "the request's body is not in the object store any more")
        said = "nobody answered"
        for number in range(TRIES):
            if envelope.deadline < time.time() * 1000:
                return _error(504, "the request was not answered in time")
            try:
                frame = await self._ask(envelope, body)
            except EngineGoneError as error:
                if not error.reached:
                    return None
                said, frame = str(error), _error(502, str(error))
            if frame.status in _NO_ENGINE:
                return None
            if frame.status not in _FAILED or number == TRIES - 1:
                return frame
            log.warning("%s: try %d of %d failed with %d", envelope.id, number + 1, TRIES, frame.status)
            await asyncio.sleep(AGAIN * 2**number)
        return _error(502, said)

    async def _ask(self, envelope: wire.Envelope, body: bytes) -> wire.Frame:
        headers = [("fleetctl-lane", "batch"), ("x-request-id", envelope.id)]
        if self._key:
            headers.append(("authorization", f"Bearer {self._key}"))
        answer = await self._proxy.send(
            "POST", envelope.path, body, content_type=envelope.content_type, accept=envelope.accept, headers=headers
        )
        try:
            told = await answer.read()
        finally:
            answer.close()
        return wire.Frame(wire.Kind.WHOLE, told, answer.status, answer.content_type, self._config.box)

    async def _remove_body(self, envelope: wire.Envelope) -> None:
        if envelope.body:
            with contextlib.suppress(NotFoundError, nats.errors.Error):
                await (await self._js.object_store(wire.BODIES)).delete(envelope.body)

    def _is_turn(self) -> bool:
        """Whether this runner takes lines, and not that of another box; what it has at work it ends in either case."""
        if self._config.floating:
            here = has_address(self._config.floating)
            if here != self._here:
                what = "is here: lines are taken" if here else "has gone to another box: no more lines are taken"
                log.info("the address %s %s", self._config.floating, what)
            self._here = here
        return self._here

    async def _page(self) -> bytes:
        try:
            page = await self._proxy.whole("GET", PAGE)
            reason = "" if page.status == 200 else f"status {page.status}"
        except EngineGoneError as error:
            page, reason = None, str(error)
        if self._told and reason:
            log.warning("the proxy does not tell its room, so no lines are taken: %s", reason)
        self._told = not reason
        return page.body if page is not None and not reason else b""

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)


def _tls(address: str) -> ssl.SSLContext | None:
    """What TLS takes. A proxy on this box is not verified: its certificate is for the name that clients have for it,
    and the connection does not leave the box."""
    parts = urlsplit(address)
    if parts.scheme != "https" or not parts.hostname or not _is_here(parts.hostname):
        return None
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _is_here(host: str) -> bool:
    """Whether an address is one of this box."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


async def _fetched(pull: JetStreamContext.PullSubscription, most: int) -> list[Msg]:
    try:
        return await pull.fetch(most, timeout=LISTEN)
    except (nats.errors.Error, APIError, TimeoutError) as error:
        if not is_away(error):
            log.warning("lines cannot be taken: %s", error)
        return []


async def _alive(message: Msg) -> None:
    """Say that a line is at work, for as long as it is."""
    while True:
        await asyncio.sleep(wire.AT_WORK_EVERY)
        with contextlib.suppress(nats.errors.Error):
            await message.in_progress()


def _error(status: int, said: str) -> wire.Frame:
    body = {"error": {"message": said, "type": "server_error", "param": None, "code": None}}
    return wire.Frame(wire.Kind.WHOLE, json.dumps(body).encode(), status)
