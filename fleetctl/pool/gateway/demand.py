"""How long a client should wait that found the queue full: from the queue's length and the rate of the answers."""

from __future__ import annotations

import asyncio
import json
import math
from collections import deque
from typing import Any

import nats.errors
from nats.aio.client import Client

from fleetctl.pool import wire

SEEN = 10.0
"""Seconds of answers that make the rate."""
LEAST, MOST = 1, 60
"""Seconds that clients are told at least and at most."""
FRESH = 1.0
"""Seconds for which a reading of the queue is good."""


def seconds_to_wait(waiting: int, rate: float) -> int:
    """Seconds until half of what waits now is served, when there is room again for a while: bounded, and rounded up."""
    if rate <= 0:
        return MOST
    return max(LEAST, min(MOST, math.ceil(waiting / 2 / rate)))


class _Seen:
    """One model: readings of its consumer, which every gateway's requests pass."""

    def __init__(self) -> None:
        self.readings: deque[tuple[float, int, int]] = deque(maxlen=10)
        """When, requests that wait, and requests that were ever delivered."""
        self.own: deque[float] = deque(maxlen=1000)
        """When this gateway had its last answers."""
        self.asking = False


class Demand:
    """Readings are made only when clients are being refused, at most once a second for a model."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._seen: dict[str, _Seen] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def answered(self, model: str) -> None:
        """This gateway had an answer of a model."""
        self._of(model).own.append(self._loop.time())

    def seconds(self, model: str) -> int:
        """What to tell a client now."""
        seen, now = self._of(model), self._loop.time()
        if not seen.asking and (not seen.readings or now - seen.readings[-1][0] > FRESH):
            seen.asking = True
            task = self._loop.create_task(self._read(model, seen))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        recent = [one for one in seen.readings if now - one[0] <= SEEN]
        waiting = seen.readings[-1][1] if seen.readings else 0
        if len(recent) >= 2:
            (first, _, before), (last, waiting, delivered) = recent[0], recent[-1]
            return seconds_to_wait(waiting, (delivered - before) / (last - first))
        own = [one for one in seen.own if now - one <= SEEN]
        if not own:
            return LEAST  # nothing is known yet
        return seconds_to_wait(waiting, len(own) / max(now - own[0], FRESH))

    async def acknowledged(self, model: str) -> int:
        """Up to which number in the stream all requests of a model are finished with; 0 where that is not known."""
        try:
            return int((await self._info(model))["ack_floor"]["stream_seq"])
        except (nats.errors.Error, ValueError, KeyError, TypeError):
            return 0

    async def _info(self, model: str) -> Any:
        subject = f"$JS.API.CONSUMER.INFO.{wire.WORK}.{wire.consumer(model)}"
        return json.loads((await self._client.request(subject, timeout=2)).data)

    async def _read(self, model: str, seen: _Seen) -> None:
        try:
            told = await self._info(model)
            reading = (self._loop.time(), int(told["num_pending"]), int(told["delivered"]["consumer_seq"]))
            seen.readings.append(reading)
        except (nats.errors.Error, ValueError, KeyError, TypeError):
            pass  # no worker has made the consumer yet, or NATS is away: what this gateway saw itself has to do
        finally:
            seen.asking = False

    def _of(self, model: str) -> _Seen:
        return self._seen.setdefault(model, _Seen())
