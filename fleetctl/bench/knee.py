"""Where to run a copy: which concurrency to measure next, or the answer and why. Pure.

The *knee* is the smallest concurrency that gives nearly all of the highest throughput: beyond it more requests at once
only wait longer, or slow each other down. The search climbs by doubling until throughput stops to rise, and then
measures where its answer could still be wrong, until that is unlikely.

Two flat ends are no knee. Where the engine itself runs no more at once than its own limit, the curve is flat because
others wait in the engine's queue. And where throughput still rises at the highest concurrency that may be measured,
there is none in range.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from fleetctl.bench import MOST_PROBES
from fleetctl.bench.curve import Belief, believe

NEARLY_ALL = 0.98  # of the highest throughput: what the knee gives
GOOD_ENOUGH = 0.97  # of it: what the answer must give, in nearly all of the curves that are possible
CLOSE = 0.2  # of the possible curves: two rungs that are good answers in shares of them that differ by no more
SURE = 0.95  # of the possible curves that agree
RISE = 1.06  # a doubling that gains less does not rise
FALL = 0.85  # of the throughput before: what fell to this is past the knee, when a second look at it says so too
EXACT = 0.03  # relative: how exact the means must be that decide
FIRST_NOISE = 0.05  # relative noise of a measurement, until repeats tell
SWEEP = 3  # measurements of each concurrency that a full sweep needs where the noise is 5 %
WORTH = 0.45  # of the requests of such a sweep: what a search may take
FULL = 0.9  # share of the requests sent at once that the engine runs, below which its own limit holds


@dataclass(frozen=True)
class Point:
    """One measurement at a concurrency. Throughput is output tokens per second; times are seconds.

    ``running`` and ``waiting`` are what the engine itself said (its highest and its mean), ``cache`` the highest share
    of its KV cache in use; None where it does not say.
    """

    concurrency: int
    throughput: float
    ttft: float | None = None
    tpot: float | None = None
    total: float | None = None
    requests: int = 0
    running: float | None = None
    waiting: float | None = None
    cache: float | None = None

    @property
    def limited(self) -> bool:
        """The engine ran fewer at once than it was sent, and the others waited in its own queue."""
        few = self.running is not None and self.running < FULL * self.concurrency
        return few and (self.waiting or 0.0) > 0.5


class Kind(StrEnum):
    """What the answer is."""

    KNEE = "knee"
    NONE_IN_RANGE = "no knee in range"
    LIMIT = "limit of the engine"
    CACHE = "room in the cache"


@dataclass(frozen=True)
class Probe:
    """Measure at this concurrency next, because of this."""

    concurrency: int
    why: str


@dataclass(frozen=True)
class Answer:
    """Take this concurrency, because of this. ``throughput`` is what is believed of it, ``sure`` a share of 1.

    ``limit``: how many requests the engine runs at once at most, where that was seen.
    """

    concurrency: int
    kind: Kind
    throughput: float
    sure: float
    why: str
    limit: int | None = None
    curve: tuple[tuple[int, float], ...] = field(default=())


@dataclass(frozen=True)
class Range:
    """What may be measured. ``expected``: where the knee is likely to be, as others measured it; None: not known."""

    most: int = 64
    probes: int = MOST_PROBES
    expected: int | None = None


def ladder(most: int) -> tuple[int, ...]:
    """The concurrencies that come into question: each number up to 8, then four to an octave, up to ``most``."""
    rungs = list(range(1, min(most, 8) + 1))
    octave = 8
    while octave < most:
        rungs += [octave + octave * part // 4 for part in range(1, 5) if octave + octave * part // 4 <= most]
        octave *= 2
    if rungs[-1] != most:
        rungs.append(most)
    return tuple(rungs)


def steps_apart(one: int, other: int, most: int = 1 << 20) -> int:
    """How many rungs of the ladder lie between two concurrencies, of which either may be between two rungs."""
    rungs = ladder(min(most, 2 * max(one, other, 8)))
    low, high = sorted((one, other))
    return sum(low < rung <= high for rung in rungs)


def next_step(points: Sequence[Point], within: Range) -> Probe | Answer:
    """What to do after these measurements, in the order in which they were made."""
    limit = engine_limit(points)
    top = min(within.most, limit.concurrency if limit else within.most)
    climb = _climb(points, top, limit, within.expected)
    if climb is not None and len(points) < within.probes:
        return climb
    usable = [point for point in points if point.concurrency <= top] or list(points)
    reached = max(point.concurrency for point in usable)
    rungs = [rung for rung in ladder(within.most) if rung <= reached]
    if reached not in rungs:
        rungs.append(reached)
    more = len(points) < within.probes and _worth(points, within.most)
    belief = believe([(p.concurrency, p.throughput) for p in usable], rungs, noise(usable))
    choice, sure, surest = _choose(belief)
    if surest < SURE and more:
        at = _where_it_matters(belief, noise(usable))
        return Probe(
            at, f"{belief.rungs[choice]} looks best so far, and {1 - surest:.0%} of what is possible says otherwise"
        )
    unsure = _rests_on_one(belief.rungs, choice, usable)
    if unsure is not None and more:
        return Probe(unsure, f"the answer, {rungs[choice]}, rests on it")
    return _answer(belief, choice, sure, usable, within, limit)


def _worth(points: Sequence[Point], most: int) -> bool:
    """A full sweep would still take far more requests, which are as the throughput in measurements of equal time."""
    mean = _means(points)
    measured = sorted(mean)

    def at(rung: int) -> float:
        above = next((n for n in measured if n >= rung), measured[-1])
        below = max((n for n in measured if n <= rung), default=above)
        share = (min(rung, above) - below) / (above - below) if above > below else 0.0
        return mean[below] + share * (mean[above] - mean[below])

    sweep = SWEEP * sum(at(rung) for rung in ladder(most))
    return sum(point.throughput for point in points) < WORTH * sweep


def _rests_on_one(rungs: Sequence[int], choice: int, points: Sequence[Point]) -> int | None:
    """What decides and was measured too seldom: the answer itself, and its neighbours; the least of them first.

    Twice at least, since one measurement may have met something else that the box did just then; and so often that the
    mean is as exact as the difference that matters.
    """
    enough = max(2, math.ceil((noise(points) / EXACT) ** 2))
    rests = [rungs[rung] for rung in (choice, choice - 1, choice + 1) if 0 <= rung < len(rungs)]
    often = {rung: sum(point.concurrency == rung for point in points) for rung in rests}
    seldom = min(rests, key=often.__getitem__)
    return seldom if often[seldom] < enough else None


@dataclass(frozen=True)
class Limit:
    """The engine's own limit, as it was seen."""

    concurrency: int
    cache: bool


def engine_limit(points: Sequence[Point]) -> Limit | None:
    """How many requests the engine runs at once at most, from points at which it was sent more. None: not seen."""
    limited = [point for point in points if point.limited]
    if not limited:
        return None
    running = round(statistics.median(point.running or 0.0 for point in limited))
    return Limit(max(1, running), any((point.cache or 0.0) > 0.9 for point in limited))


def noise(points: Sequence[Point]) -> float:
    """Relative noise of one measurement, from repeats; a few repeats do not make it much surer than it was."""
    squares, freedom = 4 * FIRST_NOISE**2, 4.0
    by: dict[int, list[float]] = {}
    for point in points:
        by.setdefault(point.concurrency, []).append(point.throughput)
    for values in by.values():
        centre = statistics.fmean(values)
        if len(values) > 1 and centre > 0:
            squares += sum((value / centre - 1) ** 2 for value in values)
            freedom += len(values) - 1
    return math.sqrt(squares / freedom)


def _climb(points: Sequence[Point], top: int, limit: Limit | None, expected: int | None) -> Probe | None:
    """The next doubling, as long as throughput rises; None when the top of the curve has been passed.

    It begins at half of where the knee is expected: one step up to it, and one beyond.
    """
    if not points:
        if expected is not None and 1 < expected // 2 < top:
            return Probe(expected // 2, f"the knee is expected at {expected}: from half of it on")
        return Probe(1, "one request alone: how fast an engine is at best")
    mean = _means(points)
    reached = max(mean)
    if reached >= top:
        # With a limit of the engine the curve up to it counts: it has to be measured at the limit itself.
        if limit is not None and top not in mean:
            return Probe(top, f"the engine runs {top} at once at most")
        return None
    below = [rung for rung in mean if rung <= reached / 2]
    if below:
        before = max(below)
        gain = mean[reached] / mean[before] if mean[before] else math.inf
        if gain < RISE:
            # One look may have met something else that the box did just then.
            for rung in (reached,) if gain < FALL else (reached, before):
                if sum(point.concurrency == rung for point in points) < 2:
                    return Probe(rung, f"{reached} gives no more than {before}: once more, to be sure")
            return None
    return Probe(min(2 * reached, top), f"throughput rises up to {reached}")


def _means(points: Sequence[Point]) -> dict[int, float]:
    by: dict[int, list[float]] = {}
    for point in points:
        by.setdefault(point.concurrency, []).append(point.throughput)
    return {concurrency: statistics.fmean(values) for concurrency, values in sorted(by.items())}


def _verdicts(belief: Belief) -> list[range]:
    """For each possible curve the rungs that would be a good answer: nearly the most, and not far beyond the knee."""
    found = []
    for curve, top in zip(belief.curves, belief.tops, strict=True):
        first = next(i for i, value in enumerate(curve) if value >= GOOD_ENOUGH * curve[top])
        last = next((i for i in range(top, len(curve)) if curve[i] < GOOD_ENOUGH * curve[top]), len(curve)) - 1
        found.append(range(first, min(last, top + 1) + 1))
    return found


def _choose(belief: Belief) -> tuple[int, float, float]:
    """The rung to take, in what share of the possible curves it is a good answer, and the most of any rung."""
    good = [0] * len(belief.rungs)
    for rungs in _verdicts(belief):
        for rung in rungs:
            good[rung] += 1
    # Of several that are about as good, the smallest: its requests wait least.
    choice = next(rung for rung, many in enumerate(good) if many >= max(good) - CLOSE * len(belief.curves))
    return choice, good[choice] / len(belief.curves), max(good) / len(belief.curves)


def _where_it_matters(belief: Belief, relative: float) -> int:
    """The concurrency whose measurement tells most about where the knee is.

    At each rung the curves are grouped by their knee: where the groups differ most, beside the noise of a measurement
    and what curves of one group differ by, one measurement tells the groups apart best.
    """
    groups: dict[int, list[tuple[float, ...]]] = {}
    for curve, top in zip(belief.curves, belief.tops, strict=True):
        groups.setdefault(top, []).append(curve)
    scores = []
    for rung in range(len(belief.rungs)):
        between, inside, count = [], 0.0, len(belief.curves)
        for members in groups.values():
            logs = [math.log(curve[rung]) for curve in members]
            mean = statistics.fmean(logs)
            between.append((mean, len(logs) / count))
            inside += sum((one - mean) ** 2 for one in logs) / count
        centre = sum(mean * weight for mean, weight in between)
        apart = sum(weight * (mean - centre) ** 2 for mean, weight in between)
        scores.append(apart / (relative**2 + inside))
    return belief.rungs[max(range(len(scores)), key=scores.__getitem__)]


def _answer(
    belief: Belief, choice: int, sure: float, points: Sequence[Point], within: Range, limit: Limit | None
) -> Answer:
    rungs, mean = belief.rungs, belief.mean
    chosen, curve = rungs[choice], tuple(zip(belief.rungs, belief.mean, strict=True))
    best, last = max(mean), mean[-1]
    at_end = choice >= len(rungs) - 1
    number = None if limit is None else limit.concurrency
    if limit is not None and at_end:
        if limit.cache:
            kind, why = (
                Kind.CACHE,
                f"its cache has no room for more than about {limit.concurrency} such requests at once",
            )
        else:
            why = f"the engine runs {limit.concurrency} requests at once at most (max_num_seqs), others wait in it"
            kind = Kind.LIMIT
        why += "; the curve is flat from there because of that, and throughput still rises up to it: this is no knee"
    elif at_end and chosen >= within.most:
        kind, why = Kind.NONE_IN_RANGE, f"throughput still rises at {chosen}, the most that was to be measured"
    else:
        kind = Kind.KNEE
        if last < 0.95 * best:
            why = f"throughput falls beyond it, by {1 - last / best:.0%} at {rungs[-1]}"
        else:
            more = round(100 * (last / mean[choice] - 1))
            why = f"throughput is flat beyond it: {f'{more:+d}% more' if more else 'the same'} at {rungs[-1]}"
        why += _slower(points, chosen)
    return Answer(chosen, kind, mean[choice], sure, why, number, curve)


def _slower(points: Sequence[Point], chosen: int) -> str:
    """What the latency does beyond the answer, in words; nothing where it is not known."""
    here = [p.total for p in points if p.concurrency == chosen and p.total]
    beyond = max((p for p in points if p.concurrency > chosen and p.total), key=lambda p: p.concurrency, default=None)
    if not here or beyond is None or beyond.total is None:
        return ""
    times = beyond.total / statistics.fmean(here)
    return f", and an answer takes {times:.1f} times as long at {beyond.concurrency}" if times > 1.05 else ""
