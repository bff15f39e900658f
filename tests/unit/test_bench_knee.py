"""The search for the knee, over curves that are simulated: what is true is known, and measurements are noisy."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from fleetctl.bench.knee import Answer, Kind, Point, Probe, Range, engine_limit, ladder, next_step, steps_apart
from fleetctl.bench.tune import search, warm_up_for

Curve = Callable[[int], float]
SHORT_PROMPTS = [(1, 36), (4, 82), (8, 109), (16, 150)]
LONG_PROMPTS = [(1, 36), (4, 81), (8, 113), (16, 87)]
RISING = [(1, 17.1), (8, 87.5), (16, 131.6), (32, 212.0), (48, 266.8)]  # one GB10, measured in public
FLAT_FROM_4 = [(1, 137), (4, 520)]


def through(points: Sequence[tuple[float, float]]) -> Curve:
    """Linear between the points, flat after the last."""

    def curve(concurrency: int) -> float:
        before = (0.0, 0.0)
        for point in points:
            if concurrency <= point[0]:
                return before[1] + (concurrency - before[0]) / (point[0] - before[0]) * (point[1] - before[1])
            before = point
        return before[1]

    return curve


@dataclass
class Engine:
    """One that makes tokens at the rate of a curve, runs so many at once at most, and is noisy."""

    curve: Curve
    noise: float = 0.0
    limit: int | None = None
    cache: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    def measure(self, step: Probe, points: list[Point]) -> Point:
        n = step.concurrency
        running = min(n, self.limit or n)
        rate = self.curve(running) * max(0.5, self._rng.gauss(1.0, self.noise))
        return Point(
            n,
            rate,
            total=n / rate if rate else None,
            running=running,
            waiting=n - running,
            cache=self.cache,
            requests=50,
        )

    def found(self, most: int = 64, probes: int = 24, expected: int | None = None) -> tuple[list[Point], Answer]:
        return search(self.measure, Range(most, probes, expected))


def best(curve: Curve, most: int) -> int:
    """The smallest concurrency that gives all of the most."""
    top = max(curve(n) for n in range(1, most + 1))
    return next(n for n in range(1, most + 1) if curve(n) >= 0.995 * top)


def knee_curve(rng: random.Random) -> tuple[str, Curve]:
    """A curve with a knee: it rises by a power, and is flat or falls beyond it."""
    knee, top, power = rng.choice([4, 6, 8, 10, 12, 16, 20, 24, 32]), rng.uniform(80, 600), rng.uniform(0.55, 1.0)
    fall = rng.choice([0.0, rng.uniform(0.15, 0.5)])

    def curve(n: int) -> float:
        return top * (n / knee) ** power if n <= knee else top * max(0.3, 1 - fall * math.log2(n / knee))

    return ("falls" if fall else "is flat"), curve


@pytest.mark.parametrize(
    ("points", "answer"),
    [(SHORT_PROMPTS, 16), (LONG_PROMPTS, 8), (FLAT_FROM_4, 4)],
    ids=["short", "long", "flat from 4"],
)
def test_the_knee_of_curves_that_operators_measured_is_found(points: list[tuple[float, float]], answer: int) -> None:
    measured, found = Engine(through(points)).found()
    assert (found.concurrency, found.kind) == (answer, Kind.KNEE)
    assert len(measured) <= len(ladder(64))
    assert found.throughput == pytest.approx(through(points)(answer), rel=0.03)


def test_why_it_is_the_knee_is_said_in_words() -> None:
    _, falls = Engine(through(LONG_PROMPTS)).found()
    assert "throughput falls beyond it, by" in falls.why and "times as long at" in falls.why
    _, flat = Engine(through(FLAT_FROM_4)).found()
    assert "throughput is flat beyond it" in flat.why and "times as long at" in flat.why


def test_a_curve_that_still_rises_at_the_end_has_no_knee_in_range() -> None:
    _, found = Engine(through(RISING)).found(most=48)
    assert (found.concurrency, found.kind) == (48, Kind.NONE_IN_RANGE)
    assert "still rises at 48" in found.why


@pytest.mark.parametrize("limit", [1, 2, 4, 6, 12])
def test_a_curve_that_is_flat_because_of_max_num_seqs_has_no_knee_there(limit: int) -> None:
    measured, found = Engine(through(RISING), limit=limit).found()
    assert (found.concurrency, found.kind, found.limit) == (limit, Kind.LIMIT, limit)
    assert "max_num_seqs" in found.why and "no knee" in found.why
    assert max(point.concurrency for point in measured) <= 2 * limit


def test_a_knee_below_the_limit_of_the_engine_is_a_knee() -> None:
    _, found = Engine(through(LONG_PROMPTS), limit=20).found()
    assert (found.concurrency, found.kind) == (8, Kind.KNEE)


def test_a_cache_that_is_full_is_told_from_a_limit() -> None:
    _, found = Engine(through(RISING), limit=10, cache=0.97).found()
    assert (found.concurrency, found.kind) == (10, Kind.CACHE)


def test_a_queue_in_the_engine_alone_is_no_limit() -> None:
    """An engine that was busy with a prompt for a moment ran fewer for a moment."""
    points = [Point(8, 100.0, running=8, waiting=2.0), Point(16, 120.0, running=15, waiting=1.0)]
    assert engine_limit(points) is None
    assert engine_limit([Point(8, 100.0)]) is None


def test_hundreds_of_noisy_curves_have_their_knee_found_with_far_fewer_measurements_than_a_sweep() -> None:
    away, lost, counts = [], [], []
    for seed in range(200):
        _, curve = knee_curve(random.Random(seed))
        measured, found = Engine(curve, noise=0.05, seed=seed).found()
        truth = best(curve, 64)
        away.append(steps_apart(found.concurrency, truth))
        lost.append(1 - curve(found.concurrency) / curve(truth))
        counts.append(len(measured))
    within = sum(steps <= 1 and loss <= 0.03 for steps, loss in zip(away, lost, strict=True))
    print(f"\n{within} of 200 are within one step and 3 %; {statistics.mean(counts):.1f} measurements each")
    assert within >= 180
    assert statistics.quantiles(lost, n=20)[-1] <= 0.05
    assert max(counts) <= 24 and statistics.mean(counts) <= 20


@pytest.mark.parametrize(("times", "saved"), [(1.0, 1.5), (0.5, 0.0), (2.0, 0.0), (0.25, -0.5), (4.0, -0.5)])
def test_a_knee_that_others_measured_is_where_the_search_begins_and_one_that_is_wrong_misleads_nobody(
    times: float, saved: float
) -> None:
    good, lost, counts, usual = 0, [], [], []
    for seed in range(40):
        _, curve = knee_curve(random.Random(seed))
        truth = best(curve, 64)
        usual.append(len(Engine(curve, noise=0.03, seed=seed).found()[0]))
        measured, found = Engine(curve, noise=0.03, seed=seed).found(expected=max(1, round(truth * times)))
        counts.append(len(measured))
        lost.append(1 - curve(found.concurrency) / curve(truth))
        good += steps_apart(found.concurrency, truth) <= 1 and lost[-1] <= 0.03
    print(f"\n{times}: {good} of 40; {statistics.mean(counts):.1f} measurements, {statistics.mean(usual):.1f} without")
    assert good >= 37 and statistics.quantiles(lost, n=20)[-1] <= 0.05
    assert statistics.mean(usual) - statistics.mean(counts) >= saved


def test_a_search_that_expects_something_begins_below_it_and_says_so() -> None:
    first = next_step([], Range(64, 24, 12))
    assert isinstance(first, Probe) and (first.concurrency, "expected at 12" in first.why) == (6, True)
    assert [next_step([], Range(8, 24, expected)) for expected in (1, 3, 40)] == [next_step([], Range(8))] * 3


def test_less_noise_needs_fewer_measurements_and_errs_less() -> None:
    def tried(noise: float) -> tuple[int, float]:
        good, counts = 0, []
        for seed in range(40):
            _, curve = knee_curve(random.Random(1000 + seed))
            measured, found = Engine(curve, noise=noise, seed=seed).found()
            truth = best(curve, 64)
            good += steps_apart(found.concurrency, truth) <= 1 and curve(found.concurrency) >= 0.97 * curve(truth)
            counts.append(len(measured))
        return good, statistics.mean(counts)

    (quiet, few), (noisy, many) = tried(0.005), tried(0.08)
    assert quiet >= 38 and quiet >= noisy
    assert few < many


def test_a_curve_that_bends_slowly_gets_an_answer_that_gives_most_of_it() -> None:
    shares = []
    for seed in range(30):
        half = random.Random(seed).uniform(1, 6)

        def curve(n: int, half: float = half) -> float:
            return 300 * n / (n + half)

        _, found = Engine(curve, noise=0.05, seed=seed).found()
        shares.append(curve(found.concurrency) / curve(64))
    assert statistics.median(shares) >= 0.92


def test_one_measurement_that_met_something_else_does_not_decide() -> None:
    engine = Engine(through(SHORT_PROMPTS), noise=0.01)
    disturbed: list[int] = []

    def measure(step: Probe, points: list[Point]) -> Point:
        point = engine.measure(step, points)
        if step.concurrency == 4 and not disturbed:
            disturbed.append(4)
            return Point(4, 0.4 * point.throughput, total=point.total)
        return point

    _, found = search(measure, Range(64))
    assert disturbed and found.concurrency in (14, 16, 20)


@pytest.mark.parametrize("most", [1, 2, 3, 5, 9, 17, 64, 100, 1000])
def test_whatever_the_range_the_search_ends_inside_it(most: int) -> None:
    for seed in range(5):
        _, curve = knee_curve(random.Random(seed))
        measured, found = Engine(curve, noise=0.2, seed=seed).found(most=most)
        assert 1 <= found.concurrency <= most
        assert all(1 <= point.concurrency <= most for point in measured)
        assert len(measured) <= 24


def test_the_same_measurements_give_the_same_step() -> None:
    points = [Point(1, 36.0), Point(2, 50.0), Point(4, 80.0), Point(8, 110.0), Point(16, 90.0)]
    assert next_step(points, Range()) == next_step(points, Range())


def test_an_engine_that_makes_nothing_gets_an_answer_all_the_same() -> None:
    _, found = Engine(lambda n: 0.0).found(most=8)
    assert found.concurrency >= 1


def test_the_ladder_has_four_rungs_to_an_octave_and_ends_at_the_most() -> None:
    assert ladder(20) == (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20)
    assert ladder(22)[-2:] == (20, 22)
    assert (steps_apart(8, 12), steps_apart(16, 14), steps_apart(9, 8), steps_apart(5, 5)) == (2, 1, 0, 0)


def test_the_warm_up_is_as_long_as_an_answer_takes() -> None:
    known = [Point(4, 80.0, total=2.0)]
    assert warm_up_for(1, [], 20.0) == 0.5
    assert warm_up_for(8, known, 20.0) == 4.0
    assert warm_up_for(64, known, 20.0) == 20.0
