"""One engine of the box: whether it is loaded, and what it works on."""

from __future__ import annotations

import asyncio
import time

from fleetctl.pool import residency, wire
from fleetctl.pool.client import Client, EngineGoneError
from fleetctl.pool.worker.merge import MOST_INPUTS
from fleetctl.pool.worker.pace import CALLS, CALLS_TO_BATCHERS, OVERLAP, Pace
from fleetctl.pool.worker.request import Request

SPEAK_MESSAGEPACK = frozenset({"encoder"})
"""Runtimes that take MessagePack and answer in it."""
MERGED_TASKS = frozenset({"embed"})
"""Tasks whose requests are merged into one call."""


class Engine:
    """State of one engine. Times are monotonic seconds."""

    def __init__(self, config: wire.PoolEngine, name: str, pace: Pace) -> None:
        self.config = config
        self.name = name
        """The model's key; with the unit's name where two engines of the box serve it."""
        self.pace = pace
        self.client = Client(config.address)
        self.phase: residency.Phase = "absent"
        self.pinned = config.pinned
        self.wish: residency.Wish | None = None
        self.demand = residency.Demand()
        self.considered: float | None = None
        """Since when it is thought about whether to load it (other boxes are asked)."""
        self.watched = False
        """Somebody looks whether it is still there."""
        self.loaded_at: float | None = None
        self.last_used: float | None = None
        self.load_seconds: float | None = None
        self.failures = 0
        self.failed_at: float | None = None
        self.reason = ""
        """Why the last load failed."""
        self.deaths = 0
        self.busy_seconds = 0.0
        self.requests = self.tokens = 0
        """Of calls that came to something, since the worker began."""
        self.running: set[Request] = set()
        self.calls = self.work_calls = 0
        self.alone = False
        """What runs must not have company."""
        self.idle = asyncio.Event()
        self.idle.set()
        self._marked = 0.0

    @property
    def merges(self) -> bool:
        """Whether its requests can be merged."""
        return self.config.task in MERGED_TASKS

    @property
    def speaks_messagepack(self) -> bool:
        """Whether it is asked as clients ask, without JSON in between."""
        return self.config.runtime in SPEAK_MESSAGEPACK

    @property
    def serves(self) -> bool:
        """Whether it takes requests."""
        return self.phase == "loaded"

    @property
    def most_calls(self) -> int:
        """Calls at once, at most."""
        most = max(1, self.config.concurrency)
        if not self.merges:
            return most
        return min(CALLS_TO_BATCHERS if self.speaks_messagepack else CALLS, most)

    @property
    def most_inputs(self) -> int:
        """Inputs of one call: as many as it takes at once, where it does not cut batches itself."""
        return MOST_INPUTS if self.speaks_messagepack else max(1, self.config.concurrency)

    @property
    def at_once(self) -> int:
        """Calls at once that need not be full. A server that makes its own batches of what comes takes the
        next one while it is at work; so does one whose calls are short."""
        late = self.merges and not self.speaks_messagepack and self.pace.call_seconds >= OVERLAP
        return 1 if late else self.most_calls

    @property
    def batch_calls(self) -> int:
        """Calls at once that may be lines of batch jobs: some room stays for those whom somebody waits for."""
        most = self.at_once
        return most if most == 1 else most - max(1, most // 4)

    def free(self) -> int:
        """Calls that could begin now with whatever somebody waits for; lines of batch jobs are no reason to wait."""
        if not self.serves or self.alone:
            return 0
        free = self.at_once - self.calls
        if free <= 0 and self.merges and not self.work_calls:
            free = self.most_calls - self.calls
        return max(0, free)

    def begin(self, group: list[Request]) -> None:
        """These are at work from now on, as one call."""
        now = time.monotonic()
        if self.calls == 0:
            self._marked = now
            self.idle.clear()
        self.calls += 1
        self.work_calls += group[0].lane == "work"
        self.alone = group[0].alone
        self.running.update(group)
        self.last_used = now
        self.demand = self.demand.after(now, len(group))

    def finish(self, group: list[Request], tokens: int) -> None:
        """They are finished, having taken so many tokens; 0 where the call came to nothing."""
        now = time.monotonic()
        self.calls -= 1
        self.work_calls -= group[0].lane == "work"
        self.running.difference_update(group)
        self.last_used = now
        self.busy_seconds += now - self._marked
        if tokens:
            self.requests, self.tokens = self.requests + len(group), self.tokens + tokens
        self.pace.saw(len(group) if tokens else 0, tokens, now - self._marked)
        self._marked = now
        if self.calls == 0:
            self.alone = False
            self.idle.set()

    async def answers(self, limit: float = 2.0) -> bool:
        """Whether its health check says yes, within so many seconds."""
        try:
            async with asyncio.timeout(limit):
                return (await self.client.whole("GET", "/health")).status == 200
        except (EngineGoneError, TimeoutError):
            return False

    async def listens(self) -> bool:
        """Whether anybody listens at its address at all, however busy."""
        try:
            async with asyncio.timeout(2.0):
                await self.client.whole("GET", "/health")
        except EngineGoneError as error:
            return error.reached
        except TimeoutError:
            pass
        return True
