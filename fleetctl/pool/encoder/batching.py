"""Batches out of what many requests ask for at once, and the lanes that compute them.

A *lane* is a thread that computes one batch after the other. When a lane is free it takes what waits, at once: nothing
is held back to make a batch fuller. Where several lanes are free they share what there is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from fleetctl.pool.encoder.errors import RequestError
from fleetctl.pool.encoder.metrics import Figures
from fleetctl.pool.encoder.waiting import Input, Waiting

if TYPE_CHECKING:
    from numpy.typing import NDArray

log = logging.getLogger(__name__)
Run = Callable[[Sequence[Sequence[int]]], "NDArray[Any]"]
"""Computes the vectors of a batch; called in a lane's thread."""
LEAST_SHARE = 128
"""Tokens below which a batch is not split between free lanes: smaller ones take more time per token."""


class _Request:
    """A request at work."""

    def __init__(self, size: int) -> None:
        self.rows: list[Any] = [None] * size
        self.left = size
        self.begun = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Batcher:
    """Requests in, vectors out."""

    def __init__(self, run: Run, lanes: int, most_tokens: int, start: int, figures: Figures) -> None:
        self._run = run
        self._most = most_tokens
        self._figures = figures
        self._waiting = Waiting(start)
        self._free = lanes
        self._more = asyncio.Event()
        self._threads = ThreadPoolExecutor(lanes, "lane")
        self._lanes = [asyncio.create_task(self._lane()) for _ in range(lanes)]

    async def embed(self, inputs: Sequence[Sequence[int]]) -> NDArray[Any]:
        """One vector for each input, in their order. Raises RequestError. Cancelled: what was not begun is dropped."""
        import numpy as np

        request, now = _Request(len(inputs)), time.perf_counter()
        items = [Input(tokens, request, index, now) for index, tokens in enumerate(inputs)]
        self._figures.waiting += 1
        self._waiting.add(items)
        self._more.set()
        try:
            await request.done
        finally:
            self._waiting.drop(items)
            if request.begun:
                self._figures.running -= 1
            else:
                self._figures.waiting -= 1
        return np.stack(request.rows)

    async def close(self) -> None:
        """End the lanes."""
        for lane in self._lanes:
            lane.cancel()
        await asyncio.gather(*self._lanes, return_exceptions=True)
        self._threads.shutdown()

    async def _lane(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            share = max(LEAST_SHARE, -(-self._waiting.tokens // self._free))
            batch = self._waiting.take(min(self._most, share))
            if not batch:
                self._more.clear()
                await self._more.wait()
                continue
            self._free -= 1
            begin = time.perf_counter()
            for one in batch:
                self._begin(one, begin)
            try:
                vectors = await loop.run_in_executor(self._threads, self._run, [one.tokens for one in batch])
            except Exception as error:
                log.exception("a batch of %d inputs failed", len(batch))
                self._fail(batch, error)
            else:
                self._count(batch, time.perf_counter() - begin)
                for one, vector in zip(batch, vectors, strict=True):
                    self._end(one, vector)
            finally:
                self._free += 1

    def _begin(self, one: Input, now: float) -> None:
        self._figures.queue.observe(now - one.since)
        if not one.owner.begun:
            one.owner.begun = True
            self._figures.waiting -= 1
            self._figures.running += 1

    def _end(self, one: Input, vector: Any) -> None:
        one.owner.rows[one.index] = vector
        one.owner.left -= 1
        if not one.owner.left and not one.owner.done.done():
            one.owner.done.set_result(None)

    def _fail(self, batch: Sequence[Input], error: Exception) -> None:
        problem = RequestError(f"computing it failed: {error}", status=500, kind="InternalServerError")
        for one in batch:
            if not one.owner.done.done():
                one.owner.done.set_exception(problem)

    def _count(self, batch: Sequence[Input], seconds: float) -> None:
        tokens = sum(len(one.tokens) for one in batch)
        self._figures.prompt_tokens += tokens
        self._figures.padding_tokens += max(len(one.tokens) for one in batch) * len(batch) - tokens
        self._figures.inputs += len(batch)
        self._figures.batch_tokens.observe(tokens)
        self._figures.compute.observe(seconds)
