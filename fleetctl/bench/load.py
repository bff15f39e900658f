"""Sending load: a closed loop of so many clients, or an open loop at a given rate.

In a *closed* loop each client has one request under way and sends the next as soon as it has the answer: what is set is
the concurrency. In an *open* loop requests come when they come, however slow the answers are, as those of many people
do: what is set is the rate. Latency in an open loop counts from the moment at which a request should have been sent. A
request that no connection or no time was there for has waited all the same ("coordinated omission").
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import uvloop

from fleetctl.bench.connection import Asker
from fleetctl.bench.exchange import Exchange, Request, Window
from fleetctl.bench.health import Generator, Pulse, judge
from fleetctl.bench.percentiles import percentile
from fleetctl.errors import FleetError

T = TypeVar("T")
_HOPELESS = 20  # failures with not one answer, after which a run ends
_PAUSE = (0.05, 1.0)  # seconds that a client waits after a failure: from, and at most after several


class LoadError(FleetError):
    """There was nothing to measure: every request failed."""


@dataclass
class Run:
    """What happened. Times are seconds of ``time.perf_counter``.

    ``exchanges`` are the requests that ended (those of the warm-up too); ``cut`` were under way when it was over.
    """

    window: Window
    exchanges: list[Exchange] = field(default_factory=list)
    cut: list[Exchange] = field(default_factory=list)
    generator: Generator | None = None
    concurrency: int | None = None
    rate: float | None = None


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the fastest event loop that there is, with as many connections as the system lets it have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


async def closed_loop(
    asker: Asker,
    requests: Iterator[Request],
    clients: int,
    *,
    warm_up: float,
    duration: float,
) -> Run:
    """So many clients for ``warm_up`` and ``duration`` seconds; what is still under way then is cut off.

    Raises LoadError when nothing is answered.
    """
    run = Run(Window(), concurrency=clients)
    begin = time.perf_counter()
    run.window.begin = begin + warm_up
    run.window.end = run.window.begin + duration
    async with _watched(run, asker):

        async def client(number: int) -> None:
            await asyncio.sleep(warm_up * 0.2 * number / clients)  # not all prompts at the very same moment
            failures = 0
            while time.perf_counter() < run.window.end:
                exchange = await asker.ask(next(requests), run.window)
                run.exchanges.append(exchange)
                failures = failures + 1 if exchange.error else 0
                if failures:
                    await asyncio.sleep(min(_PAUSE[1], _PAUSE[0] * 2 ** min(failures, 10)))

        tasks = [asyncio.ensure_future(client(number)) for number in range(clients)]
        try:
            while (left := run.window.end - time.perf_counter()) > 0:
                await asyncio.sleep(min(left, 0.1))
                _give_up_if_hopeless(run)
        finally:
            run.cut = list(asker.under_way)
            await _end(tasks)
    return run


def poisson(rate: float, seed: int) -> Iterator[float]:
    """Endless times of arrival, in seconds from the begin: so many requests a second, none of which knows of others."""
    rng = random.Random(f"fleetctl-bench arrivals {seed}")
    at = 0.0
    while True:
        at += rng.expovariate(rate)
        yield at


async def open_loop(
    asker: Asker,
    arrivals: Iterable[tuple[float, Request]],
    *,
    warm_up: float,
    duration: float,
    patience: float = 30.0,
    rate: float | None = None,
) -> Run:
    """Send requests at their times (seconds from the begin), those of the warm-up first.

    Requests that should be sent in the window count, whenever they end. What is unanswered ``patience`` seconds after
    it is cut off, and its latency is at least what it waited. Raises LoadError when nothing is answered.
    """
    run = Run(Window(), rate=rate)
    begin = time.perf_counter() + 0.05
    run.window.begin = begin + warm_up
    run.window.end = run.window.begin + duration
    tasks: set[asyncio.Task[None]] = set()
    async with _watched(run, asker):

        async def one(request: Request, intended: float) -> None:
            run.exchanges.append(await asker.ask(request, run.window, intended))

        try:
            for at, request in arrivals:
                intended = begin + at
                if intended >= run.window.end:
                    break
                if (early := intended - time.perf_counter()) > 0:
                    await asyncio.sleep(early)
                    _give_up_if_hopeless(run)
                task = asyncio.ensure_future(one(request, intended))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.sleep(max(0.0, run.window.end - time.perf_counter()))
        finally:
            if tasks and patience > 0:
                await asyncio.wait(tasks, timeout=patience)
            run.cut = list(asker.under_way)
            await _end(list(tasks))
    return run


def _give_up_if_hopeless(run: Run) -> None:
    if len(run.exchanges) >= _HOPELESS and all(exchange.error for exchange in run.exchanges):
        raise nothing_answered(run.exchanges)


def nothing_answered(exchanges: list[Exchange]) -> LoadError:
    """The error of a run in which every request failed, with the commonest kind and what the server said."""
    if not exchanges:
        return LoadError(
            "no request was answered in all the time", hint="does the engine hang? or take a longer --duration"
        )
    kind, _ = Counter(exchange.error or "no answer" for exchange in exchanges).most_common(1)[0]
    said = next((exchange.said for exchange in exchanges if exchange.error == kind and exchange.said), "")
    return LoadError(f"not one of {len(exchanges)} requests was answered: {kind}", hint=said or None)


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(ended, Exception):  # not a cancelled task
            raise ended


@contextlib.asynccontextmanager
async def _watched(run: Run, asker: Asker) -> AsyncIterator[None]:
    """Watch the generator while it works, in the window alone, and close its connections afterwards."""
    pulse = Pulse()
    loop = asyncio.get_running_loop()
    beats = asyncio.ensure_future(pulse.run())
    pulse.begin()
    cpu: list[float] = []
    now = time.perf_counter()
    marks = (
        loop.call_later(max(0.0, run.window.begin - now), pulse.begin),
        loop.call_later(max(0.0, run.window.end - now), lambda: cpu.append(pulse.cpu())),
    )
    try:
        yield
    finally:
        for mark in marks:
            mark.cancel()
        await _end([beats])
        asker.close()
    waits = [e.first - e.sent for e in run.exchanges if e.first is not None and not e.error]
    late = [e.sent - e.intended for e in run.exchanges if run.window.has(e.intended)] if run.concurrency is None else []
    run.generator = judge(cpu[0] if cpu else pulse.cpu(), pulse.lags, late, percentile(waits, 50))
    if not any(e.first is not None for e in (*run.exchanges, *run.cut)):
        raise nothing_answered(run.exchanges)
