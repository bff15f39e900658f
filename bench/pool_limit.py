#!/usr/bin/env python3
"""What `bench/pool.py` could show at best: the same work in a simulation where nothing but the engines takes time.

``python3 bench/pool_limit.py``, anywhere. Eight engines in four boxes, batches of 8, the requests of `_pool_load.py`
and the batches' times of `_pool_engines.py`, without a pace. For each way to share the requests out: the highest rate
(by bisection, to 1 % of what full batches do) at which the p99 over half a minute (the median of three) is at most 2, 3
and 4 times the longest service time.

- *least connections*: a router that pushes and knows at any moment how many requests each engine has;
- *one queue*: an engine that is free takes the oldest eight;
- *pool*: the worker's own choice (`fleetctl/pool/worker/compose.py`), each box with a part of what waits to choose
  from, by costs that are estimated 10 or 30 % wrong (standard deviation);
- *all-knowing*: one that sees all that waits anywhere, knows what each request takes and until when it has to be
  answered, and fills the batch of the most urgent request with what is most like it and still is in time;
- *no target*: what batches of eight equal members do, which no order of requests can exceed.

Progress goes to standard error; the last line of standard output has all figures: shares of what full batches do.
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from _common import Figure, print_figures, say
from _pool_engines import SHARE, batch_seconds
from _pool_load import BURSTY, CONSTANT, LONGEST, Traffic, alone, capacity

from fleetctl.bench.percentiles import percentile
from fleetctl.pool.worker.compose import Size, alike
from fleetctl.pool.worker.desk import LOOK, OF_WAITING

BOXES, OF_EACH, BATCH = 4, 2, 8
SECONDS, BEGUN, TIMES = 30.0, 2.0, 3
HOPELESS = 800  # requests that wait


@dataclass(slots=True)
class One:
    """A request: when it came, seconds that it takes alone, what that is taken for, when it was answered."""

    at: float
    alone: float
    taken_for: float
    done: float = math.inf


class Shares:
    """A way to share requests out. ``queue`` has those that no box has taken."""

    def __init__(self) -> None:
        self.queue: deque[One] = deque()
        self.local: list[list[One]] = [[] for _ in range(BOXES)]

    def waiting(self) -> int:
        """Requests that no engine has begun."""
        return len(self.queue) + sum(map(len, self.local))

    def add(self, one: One) -> None:
        """A request has come."""
        self.queue.append(one)

    def batch(self, engine: int, now: float) -> list[One]:
        """What a free engine begins with: the oldest."""
        return [self.queue.popleft() for _ in range(min(BATCH, len(self.queue)))]


class LeastConnections(Shares):
    """Each engine has its own queue, and requests stay where they were sent."""

    def __init__(self) -> None:
        super().__init__()
        self.local = [[] for _ in range(BOXES * OF_EACH)]
        self.at_work = [0] * len(self.local)
        self.rng = random.Random("ties")

    def add(self, one: One) -> None:
        self.local[
            min(range(len(self.local)), key=lambda n: (len(self.local[n]) + self.at_work[n], self.rng.random()))
        ].append(one)

    def batch(self, engine: int, now: float) -> list[One]:
        group, self.local[engine] = self.local[engine][:BATCH], self.local[engine][BATCH:]
        self.at_work[engine] = len(group)
        return group


class Pool(Shares):
    """A box takes what its free engine has room for and a part of what else waits, and chooses."""

    def batch(self, engine: int, now: float) -> list[One]:
        line = self.local[engine // OF_EACH]
        want = BATCH + min(LOOK * BATCH, max(0, len(self.queue) - BATCH) // OF_WAITING)
        while self.queue and len(line) < want:
            line.append(self.queue.popleft())
        if not line:
            return []
        sizes = [Size(max(1, round(10_000 * one.taken_for))) for one in line]
        return _taken(line, alike(sizes, 1 << 40, BATCH))


class AllKnowing(Shares):
    """``target``: seconds in which each request is to be answered; one that is late gets as long again."""

    def __init__(self, target: float) -> None:
        super().__init__()
        self.target = target

    def batch(self, engine: int, now: float) -> list[One]:
        line = self.local[0]
        line.extend(self.queue)
        self.queue.clear()
        if not line:
            return []
        ends = [self._end(one, now) for one in line]
        order = sorted(range(len(line)), key=lambda n: -line[n].taken_for)
        urgent = min(range(len(order)), key=lambda n: ends[order[n]] - line[order[n]].taken_for)
        best: tuple[float, list[int]] = (0.0, [order[urgent]])
        for first in range(urgent + 1):
            group = [order[first]] + ([order[urgent]] if first != urgent else [])
            longest, work = line[order[first]].taken_for, sum(line[n].taken_for for n in group)
            until = min(ends[n] for n in group)
            if len(group) > 1 and now + _takes(longest, work) > until:
                continue
            for n in islice(order, first + 1, None):
                if len(group) == BATCH:
                    break
                if n != order[urgent] and now + _takes(longest, work + line[n].taken_for) <= min(until, ends[n]):
                    group.append(n)
                    work += line[n].taken_for
                    until = min(until, ends[n])
            best = max(best, (work / _takes(longest, work), group))
        return _taken(line, best[1])

    def _end(self, one: One, now: float) -> float:
        late = max(0.0, now + one.taken_for - one.at - self.target)
        return one.at + self.target * (1 + math.ceil(late / self.target))


def _takes(longest: float, work: float) -> float:
    return longest + SHARE * (work - longest)


def _taken(line: list[One], group: Sequence[int]) -> list[One]:
    chosen = set(group)
    taken = [line[n] for n in group]
    line[:] = [one for n, one in enumerate(line) if n not in chosen]
    return taken


def requests(traffic: Traffic, rate: float, wrong: float, seed: int) -> Iterator[One]:
    """Those of `_pool_load.py`, with estimates."""
    times, sizes, work, guess = (random.Random(f"pool limit {traffic.name} {seed} {what}") for what in "tnwe")
    at = 0.0
    while at < SECONDS:
        at += times.expovariate(rate / traffic.group)
        for _ in range(sizes.randint(1, 2 * traffic.group - 1)):
            seconds = alone(work)
            yield One(at, seconds, seconds * math.exp(guess.gauss(0, wrong)))


def p99(shares: Shares, traffic: Traffic, rate: float, wrong: float, seed: int) -> float:
    """Of the latency, in seconds; endless where more and more wait."""
    come = requests(traffic, rate, wrong, seed)
    nothing = One(math.inf, 0.0, 0.0)
    upcoming = next(come, nothing)
    free, ends, seen = list(range(BOXES * OF_EACH)), list[tuple[float, int]](), list[One]()
    while upcoming is not nothing or ends:
        if ends and ends[0][0] <= upcoming.at:
            now, engine = heapq.heappop(ends)
            free.append(engine)
        else:
            now = upcoming.at
            while upcoming.at <= now:
                shares.add(upcoming)
                seen.append(upcoming)
                upcoming = next(come, nothing)
        for engine in sorted(free, key=lambda one: free.count(one ^ 1), reverse=True):  # of boxes with two free first
            if group := shares.batch(engine, now):
                end = now + batch_seconds([one.alone for one in group])
                for one in group:
                    one.done = end
                free.remove(engine)
                heapq.heappush(ends, (end, engine))
        if shares.waiting() > HOPELESS:
            return math.inf
    return percentile([one.done - one.at for one in seen if one.at > BEGUN], 99) or math.inf


def highest(make: Callable[[], Shares], traffic: Traffic, full: float, target: float, wrong: float) -> float:
    """The highest rate that meets the target, as a share of what full batches do."""
    low, high = 0, 170
    while high - low > 1:
        share = (low + high) // 2
        if statistics.median(p99(make(), traffic, full * share / 100, wrong, n) for n in range(TIMES)) <= target:
            low = share
        else:
            high = share
    return low / 100


def main() -> int:
    full = capacity(BOXES * OF_EACH, BATCH, 1.0)
    rng = random.Random("pool limit")
    costs = [alone(rng) for _ in range(100_000)]
    most = BOXES * OF_EACH * BATCH / (batch_seconds([1.0] * BATCH) * sum(costs) / len(costs)) / full
    figures = {"no_target_equal_members": Figure(round(most, 2), "of full batches")}
    say(f"full batches: {full:.0f} requests/s; of equal members: {most:.2f} of that")
    for times in (2.0, 3.0, 4.0):
        target = times * LONGEST
        ways: dict[str, tuple[Callable[[], Shares], float]] = {
            "least_connections": (LeastConnections, 0.0),
            "one_queue": (Shares, 0.0),
            "pool": (Pool, 0.1),
            "pool_30_wrong": (Pool, 0.3),
            "all_knowing": (partial(AllKnowing, target), 0.0),
        }
        for name, (make, wrong) in ways.items():
            for traffic in (CONSTANT, BURSTY):
                found = highest(make, traffic, full, target, wrong)
                say(f"p99 of {times:g} times the longest, {traffic.name}, {name}: {found:.2f}")
                figures[f"p99_{times:g}_{traffic.name}_{name}"] = Figure(found, "of full batches")
    print_figures("pool_limit", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
