"""The traffic of `bench/pool.py`, and one measurement of it: so many requests a second for so many seconds.

Latency counts from the moment at which a request should have been sent (open loop), to the last byte of its answer.
What failed, and what had no answer when patience ended, has an endless latency.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from _common import BenchError
from _pool_engines import MODEL, batch_seconds

from fleetctl.bench.connection import Asker
from fleetctl.bench.endpoint import parse_endpoint
from fleetctl.bench.exchange import Exchange, Request, Window
from fleetctl.bench.health import process_cpu
from fleetctl.bench.load import Run, open_loop, run
from fleetctl.bench.percentiles import percentile

SHORTEST, LONGEST = 0.002, 0.2  # seconds of a request alone, before the pace; drawn evenly on a logarithmic scale
WORDS = 8  # for each millisecond: longer requests take longer, as those of real models do
TEXT = "word " * 1700
_TICKS = os.sysconf("SC_CLK_TCK")
_IDS = count(1)


@dataclass(frozen=True)
class Traffic:
    """Groups of requests arrive at random times, of 1 to 2 * ``group`` - 1, all at the same moment."""

    name: str
    group: int

    def arrivals(self, rate: float, seed: int) -> Iterator[tuple[float, Request]]:
        """Endless requests and their times in seconds, ``rate`` a second; another rate is the same at another speed."""
        times, sizes, work = (random.Random(f"bench pool {self.name} {what} {seed}") for what in ("at", "size", "work"))
        at = 0.0
        while True:
            at += times.expovariate(rate / self.group)
            for _ in range(sizes.randint(1, 2 * self.group - 1)):
                yield at, request(alone(work))


CONSTANT = Traffic("constant", 1)
BURSTY = Traffic("bursty", 8)


def alone(rng: random.Random) -> float:
    """Seconds that a request takes alone."""
    return SHORTEST * (LONGEST / SHORTEST) ** rng.random()


def request(seconds: float, identity: int | None = None) -> Request:
    """An embedding that takes so long."""
    milliseconds = 1000 * seconds
    number = next(_IDS) if identity is None else identity
    body = f'{{"model":"{MODEL}","input":"{number} {milliseconds:.3f} {TEXT[: 5 * int(WORDS * milliseconds) + 4]}"}}'
    return Request("/embeddings", body.encode(), stream=False, tokens=0)


def capacity(engines: int, batch: int, pace: float) -> float:
    """Requests per second of all engines when every batch is full."""
    rng = random.Random("bench pool capacity")
    took = [batch_seconds([alone(rng) for _ in range(batch)]) for _ in range(4000)]
    return engines * batch * len(took) / sum(took) / pace


@dataclass(frozen=True)
class Engines:
    """The engines that are measured behind something. Those of one box are one process."""

    ports: tuple[int, ...]
    batch: int
    pace: float
    sessions: tuple[int, ...] = ()

    @property
    def urls(self) -> list[str]:
        """Their addresses."""
        return [f"http://127.0.0.1:{port}" for port in self.ports]


@dataclass(frozen=True)
class Probe:
    """What one measurement gave. Latencies in seconds; shares are of the engines' batches, or of all cores."""

    rate: float
    answered: float
    """Requests per second that were answered, of those that should have been sent in the window."""
    p50: float
    p99: float
    failed: int
    filled: float
    """Share of the places of all batches in use, over the time: the utilization."""
    busy: float
    """Share of the time in which an engine had a batch at all."""
    size: float
    """Requests of a batch."""
    late: float
    """Seconds by which the engines' batches ended late, on average."""
    cpu: float
    """Share of all cores that the contender, the engines and the generator used together."""
    machine: float
    """Share of all cores in use, by whatever."""
    why: tuple[str, ...] = ()
    """What the generator says against the figures."""


class TargetMissedError(Exception):
    """More than one in a hundred is late already: the p99 cannot be met any more."""


class _Watched(Asker):
    """Counts answers that come late. It is given the window by the first request."""

    late = 0
    target = math.inf
    window: Window | None = None

    async def ask(self, request: Request, window: Window, intended: float | None = None) -> Exchange:
        self.window = window
        exchange = await super().ask(request, window, intended)
        if window.has(exchange.intended) and time.perf_counter() - exchange.intended > self.target:
            self.late += 1
        return exchange

    def late_by_now(self) -> int:
        """Those that were, and those that have no answer and are late."""
        bound = time.perf_counter() - self.target
        window = self.window or Window()
        return self.late + sum(window.has(one.intended) and one.intended < bound for one in self.under_way)


def probe(
    url: str,
    engines: Engines,
    sessions: Sequence[int],
    traffic: Traffic,
    rate: float,
    *,
    seed: int,
    target: float,
    warm_up: float,
    duration: float,
) -> Probe | None:
    """Measure; None when the target was missed before the end. ``sessions``: processes of the contender."""
    allowed = max(5.0, 0.0115 * rate * duration)

    async def work() -> tuple[Run, list[_Snapshot]]:
        asker = _Watched(parse_endpoint(url), timeout=60.0)
        asker.target = target

        def arrivals() -> Iterator[tuple[float, Request]]:
            looked = 0.0
            for at, one in traffic.arrivals(rate, seed):
                if at - looked > 0.05:
                    looked = at
                    if asker.late_by_now() > allowed:
                        raise TargetMissedError
                yield at, one

        sids = (*sessions, *engines.sessions)
        looks = [asyncio.ensure_future(_look(after, engines, sids)) for after in (warm_up, warm_up + duration)]
        try:
            ran = await open_loop(
                asker, arrivals(), warm_up=warm_up, duration=duration, patience=1.5 * target, rate=rate
            )
            return ran, list(await asyncio.gather(*looks))
        finally:
            for look in looks:
                look.cancel()

    try:
        ran, (before, after) = run(work())
    except TargetMissedError:
        return None
    finally:
        settle(engines)
    return _judged(ran, before, after, rate, engines)


def settle(engines: Engines, limit: float = 20.0) -> None:
    """Wait until nothing is at work any more. Raises BenchError after ``limit`` seconds."""
    end = time.monotonic() + limit
    quiet = 0
    while quiet < 3:
        told = [stats(port) for port in engines.ports]
        quiet = 0 if any(one["waiting"] or one["running"] for one in told) else quiet + 1
        if time.monotonic() > end:
            raise BenchError(f"the engines still work {limit:g} s after the load has ended")
        time.sleep(0.05)


def stats(port: int) -> dict[str, float]:
    """What an engine has counted."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/stats", timeout=5) as answer:
        told: dict[str, float] = json.load(answer)
    return told


@dataclass(frozen=True)
class _Snapshot:
    engines: list[dict[str, float]]
    cpu: float
    machine: float
    at: float


async def _look(after: float, engines: Engines, sessions: Sequence[int]) -> _Snapshot:
    await asyncio.sleep(after + 0.05)
    told = await asyncio.gather(*(asyncio.to_thread(stats, port) for port in engines.ports))
    return _Snapshot(told, session_cpu(sessions) + process_cpu(), _machine_cpu(), time.perf_counter())


def session_cpu(sessions: Sequence[int]) -> float:
    """Seconds of CPU of all processes of these sessions."""
    wanted, ticks = {str(one) for one in sessions}, 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[3] in wanted:
                ticks += sum(int(one) for one in fields[11:13])
    return ticks / _TICKS


def _machine_cpu() -> float:
    user, nice, system, _, _, irq, soft, *_ = (
        int(one) for one in Path("/proc/stat").read_text().partition("\n")[0].split()[1:]
    )
    return (user + nice + system + irq + soft) / _TICKS


def _judged(ran: Run, before: _Snapshot, after: _Snapshot, rate: float, engines: Engines) -> Probe:
    counted = [one for one in (*ran.exchanges, *ran.cut) if ran.window.has(one.intended)]
    waits = [one.ended - one.intended if one.error is None and one.ended is not None else math.inf for one in counted]
    failed = sum(one.error is not None for one in ran.exchanges if ran.window.has(one.intended))

    def more(key: str) -> float:
        return sum(b[key] - a[key] for a, b in zip(before.engines, after.engines, strict=True))

    time_of_all, cores = more("now"), len(os.sched_getaffinity(0)) * (after.at - before.at)
    batches = max(1.0, more("batches"))
    return Probe(
        rate=rate,
        answered=sum(one < math.inf for one in waits) / (ran.window.end - ran.window.begin),
        p50=percentile(waits, 50) or math.inf,
        p99=percentile(waits, 99) or math.inf,
        failed=failed,
        filled=more("filled") / (time_of_all * engines.batch),
        busy=more("busy") / time_of_all,
        size=more("answered") / batches,
        late=more("late") / batches,
        cpu=(after.cpu - before.cpu) / cores,
        machine=(after.machine - before.machine) / cores,
        why=ran.generator.why if ran.generator else (),
    )
