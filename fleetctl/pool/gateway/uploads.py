"""Long bodies on their way through a gateway: how many at once, how fast, and how much of the store they may take.

Whoever has no turn yet is not read from, so that its client waits at its own socket. While short requests come, all
long bodies together are taken no faster than :data:`BESIDE`, each its share, so that the loop is free for others most
of the time.

What the store has is counted here, and not left to the limit of its stream: at ``max_bytes`` NATS 2.9 refuses new
messages, as it is told to, and yet removes old ones that it has acknowledged (see fleetctl/pool/batch/quota.py). Each
gateway counts what it brings itself and looks at the store once a second; several may overshoot by what they bring in
that time, for which :data:`SHARE` leaves room.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext

import nats.errors
from nats.js import JetStreamContext
from nats.js.errors import APIError, NoStreamResponseError

from fleetctl.pool import wire
from fleetctl.pool.gateway.refusals import Refusal, many_bodies, queue_away, store_full, too_long

AT_ONCE = 8
"""Long bodies that are read at once."""
BESIDE = 8_000_000
"""Bytes per second of all long bodies together, while short requests come; without any there is no limit.

128 KiB take some 0.27 ms of a gateway's core and as much of nats-server's, under 2 % of either at this rate; and the 20
to 40 ms that nats-server takes to remove 32 MB are under 1 % of the time, which is what a p99 leaves out. Measured were
20 MB/s, where the p99 of short requests rose by 4 to 39 %, and 32 MB/s, by a quarter and more (docs/benchmarks.md)."""
SHARE = 0.8
"""Of the bucket's own limit, which bodies from gateways may take; the rest is for batch jobs."""
FRESH = 1.0
"""Seconds for which a look at the store is good."""
LOOK = 2.0
"""Seconds that the answer to one may take."""


class Room:
    """How much of the object store is left. ``store``: bytes that its bucket takes at most; 0: no limit."""

    def __init__(self, js: JetStreamContext, store: int) -> None:
        self._js = js
        self._most = int(SHARE * store)
        """Bytes that all bodies may take together; 0: no limit."""
        self._there = 0
        """Bytes that were there at the last look, and those that came from here since."""
        self._coming = 0
        self._looked = self._failed = float("-inf")
        """When it was looked, and when that failed."""
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def taken(self, size: int | None, most: int) -> AsyncIterator[int]:
        """So many bytes are kept free for a body that comes; for one of unknown length (None) what there is, and at
        most ``most``. How many that are. Raises Refusal where there is no room."""
        if not self._most:
            yield most
            return
        if size is not None and size > self._most:
            raise too_long(self._most)
        await self._look()
        free = self._most - self._there - self._coming
        kept = size if size is not None else max(wire.INLINE_BODY, min(most, free))
        if kept > free:
            raise store_full()
        self._coming += kept
        try:
            yield kept
        finally:
            self._coming -= kept

    def brought(self, size: int) -> None:
        """A body is there that turned out to have so many bytes."""
        self._there += size

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._lock:
            if loop.time() - self._looked < FRESH:
                return
            if loop.time() - self._failed < FRESH:  # those who waited for that look hear of it at once
                raise _no_look()
            try:
                info = await asyncio.wait_for(self._js.stream_info(f"OBJ_{wire.BODIES}"), LOOK)
            except (APIError, NoStreamResponseError, nats.errors.Error, TimeoutError):
                self._failed = loop.time()
                raise _no_look() from None
            self._there, self._looked = info.state.bytes, loop.time()


def _no_look() -> Refusal:
    return queue_away("the store for long bodies does not say how full it is")


class Uploads:
    """Turns of long bodies at one gateway."""

    def __init__(self, room: Room | None, short_come: Callable[[], bool]) -> None:
        self._room = room
        self._short_come = short_come
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._free_at = 0.0
        """When the next piece may be taken, by the clock of the event loop."""

    def brought(self, size: int) -> None:
        """A body of so many bytes has come in its turn."""
        if self._room is not None:
            self._room.brought(size)

    @asynccontextmanager
    async def turn(self, size: int | None, most: int, seconds: float) -> AsyncIterator[int]:
        """Wait until a body of so many bytes, or (None) of unknown length, may be read; how many it may have, ``most``
        at most. Raises Refusal when the store has no room for it, or when its turn has not come within half of the
        ``seconds`` that its request may take."""
        async with self._room.taken(size, most) if self._room is not None else nullcontext(most) as kept:
            try:
                async with asyncio.timeout(seconds / 2):
                    await self._turns.acquire()
            except TimeoutError:
                raise many_bodies() from None
            try:
                yield kept
            finally:
                self._turns.release()

    async def give_way(self, size: int) -> None:
        """Wait as long as short requests need after so many bytes."""
        if self._short_come():
            now = asyncio.get_running_loop().time()
            self._free_at = max(now, self._free_at) + size / BESIDE
            await asyncio.sleep(self._free_at - now)
