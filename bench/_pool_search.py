"""The search of `bench/pool.py`: which setting of a contender, and the highest rate at which it meets the target."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from _common import say
from _pool_contenders import Contender, Served
from _pool_load import CONSTANT, LONGEST, Engines, Probe, Traffic, probe

TARGET = 2.0  # times the longest service time
STEP = 0.04  # of the capacity
JUMP = 2  # steps
CLOSE = 0.03  # of the target: so near to it one window does not decide
CHOICE = 0.7  # of the capacity: where settings are compared
WARM_UP, WINDOW = 0.75, 3.0  # seconds, before the pace


@dataclass
class Place:
    """Engines to measure in front of, and what they can do."""

    engines: Engines
    folder: Path
    capacity: float
    """Requests per second when every batch is full."""

    @property
    def target(self) -> float:
        """Seconds that the p99 may be."""
        return TARGET * LONGEST * self.engines.pace

    def measure(
        self, served: Served, traffic: Traffic, share: float, seed: int, target: float, part: float = 1.0
    ) -> Probe | None:
        """One window at a share of the capacity, or a part of one."""
        return probe(
            served.url,
            self.engines,
            served.sessions,
            traffic,
            share * self.capacity,
            seed=seed,
            target=target,
            warm_up=WARM_UP * self.engines.pace,
            duration=WINDOW * self.engines.pace * part,
        )


@dataclass
class Found:
    """The highest rate at which a contender meets the target. ``windows`` are those at this rate that did."""

    contender: Contender
    traffic: Traffic
    level: int
    windows: list[Probe] = field(default_factory=list)

    def mean(self, key: str) -> float:
        """Of a figure over the windows; 0 where no rate met the target."""
        return statistics.fmean(getattr(one, key) for one in self.windows) if self.windows else 0.0


def best(contenders: Sequence[Contender], place: Place) -> Contender:
    """The one with the lowest p99 in one short window, which ends as soon as another's is lower for certain."""
    p99: dict[Contender, float] = {}
    for one in contenders:
        lowest = min(p99.values(), default=math.inf)
        with one.serve(place.engines, place.folder) as served:
            told = place.measure(served, CONSTANT, CHOICE, 1, lowest, 0.6)
        p99[one] = told.p99 if told else math.inf
        if told:
            say(f"{one.title}: p99 {1000 * told.p99:.0f} ms at {CHOICE:.0%}")
        else:
            say(f"{one.title}: p99 more than {1000 * lowest:.0f} ms at {CHOICE:.0%}, ended early")
    chosen = min(p99, key=lambda one: p99[one])
    say(f"taken: {chosen.title}")
    return chosen


def search_all(contenders: Sequence[Contender], begin: Mapping[Traffic, float], place: Place) -> list[Found]:
    """Search the highest rate of each. ``begin``: where the first search begins, a share of the capacity."""
    found: list[Found] = []
    first = {traffic: round(share / STEP) for traffic, share in begin.items()}
    for contender in contenders:
        with contender.serve(place.engines, place.folder) as served:
            for traffic in begin:
                guess = first[traffic] if contender.begin is None else round(contender.begin / STEP)
                found.append(search(contender, served, traffic, place, guess))
                first[traffic] = max(1, found[-1].level)
    return found


def search(contender: Contender, served: Served, traffic: Traffic, place: Place, first: int) -> Found:
    """The highest rate at which the p99 stays within the target."""
    windows: dict[int, list[Probe]] = {}

    def meets(level: int) -> bool:
        told: list[Probe | None] = []
        for seed in (1, 2, 3):
            one = place.measure(served, traffic, level * STEP, seed, place.target)
            told.append(one)
            say(f"{contender.title}, {traffic.name}: {in_words(one, level, place)}")
            near = one is not None and abs(one.p99 / place.target - 1) <= CLOSE
            good = [one for one in told if one is not None and one.p99 <= place.target]
            if (seed == 1 and not near) or max(len(good), seed - len(good)) == 2:
                break
        if len(good) * 2 > len(told):
            windows[level] = good
        return level in windows

    level = highest(meets, first, math.floor(1.1 / STEP))
    return Found(contender, traffic, level, windows.get(level, []))


def highest(meets: Callable[[int], bool], first: int, most: int) -> int:
    """The highest level that meets, from a guess: jumps until the answer changes, then bisection. 0: none does."""
    low, high, level = 0, most + 1, min(first, most)
    while high - low > 1:
        if meets(level):
            low = level
        else:
            high = level
        if low == 0:
            level = max(high - JUMP, 1)
        elif high > most:
            level = min(low + JUMP, most)
        else:
            level = (low + high) // 2
    return low


def in_words(one: Probe | None, level: int, place: Place) -> str:
    """A measurement on one line."""
    told = f"{level * STEP:.0%} ({level * STEP * place.capacity:.0f}/s) "
    if one is None:
        return told + "misses the target, ended early"
    verdict = "meets" if one.p99 <= place.target else "misses"
    told += f"{verdict} the target with p99 {1000 * one.p99:.0f} ms; utilization {one.filled:.0%}, cores {one.cpu:.0%}"
    return told + (f", {one.failed} failed" if one.failed else "") + "".join(f"; {why}" for why in one.why)


def table(found: Sequence[Found], place: Place) -> str:
    """The results side by side."""
    rows = [
        {
            "arrival": one.traffic.name,
            "contender": one.contender.title,
            "requests/s": f"{one.mean('answered'):.0f}",
            "of capacity": f"{one.mean('answered') / place.capacity:.0%}",
            "p99 ms": f"{1000 * one.mean('p99'):.0f}",
            "utilization": f"{one.mean('filled'):.0%}",
            "batch": f"{one.mean('size'):.1f}",
            "busy": f"{one.mean('busy'):.0%}",
            "cores": f"{one.mean('cpu'):.0%}",
            "machine": f"{one.mean('machine'):.0%}",
            "late ms": f"{1000 * one.mean('late'):.1f}",
        }
        for one in sorted(found, key=lambda one: one.traffic.name, reverse=True)
    ]
    widths = {key: max(len(row[key]) for row in rows) for key in rows[0]} if rows else {}
    lines = [dict(zip(widths, widths, strict=True)), *rows]
    return "\n".join("  ".join(row[key].ljust(max(width, len(key))) for key, width in widths.items()) for row in lines)
