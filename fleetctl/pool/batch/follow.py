"""Reading a job's answers as they come, across restarts of NATS.

The consumer that is read with is gone after a restart: another one is made then. It begins at the first answer again,
for a server that lost power may have lost the last messages, and numbers others as it had numbered those.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

import nats.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import APIError

from fleetctl.pool import wire
from fleetctl.pool.batch.away import Patience
from fleetctl.pool.batch.results import Answer, read

AT_ONCE = 256
"""Answers that are asked for together."""
LISTEN = 1.0
"""Seconds that are waited for further ones before the caller hears that there are none."""
KEPT = 60.0
"""Seconds after which the server removes a consumer that nobody reads with."""

Pull = JetStreamContext.PullSubscription


async def answers(js: JetStreamContext, job: str, patience: Patience) -> AsyncGenerator[list[Answer], None]:
    """Every answer of a job, those that are there first, then as they come; without end, and some of them twice.

    What comes together is given together. An empty list says that there are no more now, and that the server is there.
    """
    pull: Pull | None = None
    try:
        while True:
            if pull is None:
                pull = await patience.call(_consumer(js, job))
            try:
                messages = await pull.fetch(AT_ONCE, timeout=LISTEN)
            except (nats.errors.Error, APIError, TimeoutError):
                if await _is_there(pull):
                    await patience.back()
                    yield []
                else:
                    await _end(pull)
                    pull = None
                    await patience.away()
                continue
            await patience.back()
            found = []
            for message in messages:
                found.append(await patience.call(_reading(js, message)))
            yield found
            if messages[-1].metadata.num_pending == 0:
                yield []
    finally:
        if pull is not None:
            await _end(pull)


async def there(js: JetStreamContext, job: str, patience: Patience) -> AsyncGenerator[list[Answer], None]:
    """The answers of a job that are there now."""
    stream = answers(js, job, patience)
    async with contextlib.aclosing(stream) as several:
        async for found in several:
            if not found:
                return
            yield found


def _consumer(js: JetStreamContext, job: str) -> Callable[[], Awaitable[Pull]]:
    async def make() -> Pull:
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.ALL,
            ack_policy=AckPolicy.NONE,
            inactive_threshold=KEPT,
            num_replicas=1,
        )
        subject = f"result.{wire.token(job)}.*"
        return await js.pull_subscribe(subject, stream=wire.RESULTS, config=config)

    return make


def _reading(js: JetStreamContext, message: Msg) -> Callable[[], Awaitable[Answer]]:
    return lambda: read(js, message.subject, message.data, message.headers)


async def _is_there(pull: Pull) -> bool:
    try:
        await pull.consumer_info()
    except (nats.errors.Error, APIError, TimeoutError):
        return False
    return True


async def _end(pull: Pull) -> None:
    with contextlib.suppress(nats.errors.Error, APIError, TimeoutError):
        await pull.unsubscribe()


class Clock:
    """Whether a while has passed, for looks that are not taken at each turn."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._last = time.monotonic()

    def strikes(self) -> bool:
        """True once in each while."""
        now = time.monotonic()
        if now - self._last < self._every:
            return False
        self._last = now
        return True
