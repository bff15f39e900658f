"""Whether the generator itself kept up: a slow generator measures itself and calls it the server's latency."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from fleetctl.bench.percentiles import percentile

BEAT = 0.02  # seconds between two looks at the clock
MOST_CPU = 0.9  # share of one core; Python uses no second one
MOST_LAG = 0.025  # seconds, at the 99th percentile; also a tenth of the median wait for a first token


@dataclass(frozen=True)
class Generator:
    """How the generator did while it measured. ``cpu``: share of one core; lags in seconds.

    ``lag_p99``: how late the event loop was; ``late_p99``: how late requests of an open loop were sent.
    """

    cpu: float
    lag_p99: float
    lag_max: float
    late_p99: float
    saturated: bool
    why: tuple[str, ...]


def judge(cpu: float, lags: Sequence[float], late: Sequence[float], typical_wait: float | None) -> Generator:
    """The verdict. ``typical_wait``: the median wait for a first token (seconds), which lags are compared with."""
    lag, latest, late_p99 = percentile(lags, 99) or 0.0, max(lags, default=0.0), percentile(late, 99) or 0.0
    bound = max(MOST_LAG, 0.1 * (typical_wait or 0.0))
    why = []
    if cpu >= MOST_CPU:
        why.append(f"it used {cpu:.0%} of one core")
    if lag > bound:
        words = f"its event loop was {1000 * lag:.0f} ms late (p99)"
        why.append(words if cpu >= 0.6 else f"{words}, although it used only {cpu:.0%} of a core: this machine is busy")
    if late_p99 > bound:
        why.append(f"requests were sent {1000 * late_p99:.0f} ms late (p99)")
    return Generator(cpu, lag, latest, late_p99, bool(why), tuple(why))


@dataclass
class Pulse:
    """Looks at the clock again and again while it runs as a task, in the window alone."""

    lags: list[float] = field(default_factory=list)
    _began: float = 0.0
    _cpu: float = 0.0

    def begin(self) -> None:
        """From now on it counts."""
        self.lags.clear()
        self._began, self._cpu = time.perf_counter(), process_cpu()

    def cpu(self) -> float:
        """Share of one core since `begin`, of all threads: with a tunnel some of them carry bytes."""
        return (process_cpu() - self._cpu) / max(1e-9, time.perf_counter() - self._began)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            before = time.perf_counter()
            await asyncio.sleep(BEAT)
            self.lags.append(max(0.0, time.perf_counter() - before - BEAT))


def process_cpu() -> float:
    """Seconds of CPU that this process has used."""
    times = os.times()
    return times.user + times.system
