"""Measuring a copy at one concurrency after another, until the search for its knee has an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fleetctl.bench.health import Generator
from fleetctl.bench.knee import Answer, Kind, Point, Probe, Range, next_step
from fleetctl.bench.target import Bench

SHORTEST = 0.5  # seconds of warm-up


@dataclass(frozen=True)
class Tuned:
    """All measurements in their order, the answer, and how the generator did at its worst."""

    points: tuple[Point, ...]
    answer: Answer
    generator: Generator | None = None

    @property
    def requests(self) -> int:
        """How many requests were counted."""
        return sum(point.requests for point in self.points)

    def record(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        return {
            "answer": asdict(self.answer),
            "points": [asdict(point) for point in self.points],
            "requests": self.requests,
            "generator": asdict(self.generator) if self.generator else None,
        }

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Tuned:
        """From its JSON."""
        told = dict(record["answer"])
        answer = Answer(
            **{**told, "kind": Kind(told["kind"]), "curve": tuple((int(n), float(rate)) for n, rate in told["curve"])}
        )
        worst = record.get("generator")
        generator = Generator(**{**worst, "why": tuple(worst["why"])}) if worst else None
        return cls(tuple(Point(**point) for point in record["points"]), answer, generator)


def search(measure: Callable[[Probe, list[Point]], Point], within: Range) -> tuple[list[Point], Answer]:
    """Measure until there is an answer."""
    points: list[Point] = []
    while True:
        step = next_step(points, within)
        if isinstance(step, Answer):
            return points, step
        points.append(measure(step, points))


def tune(
    bench: Bench, within: Range, *, duration: float, say: Callable[[Probe, Point | None], object] = lambda *_: None
) -> Tuned:
    """Find the knee of an engine. Each measurement takes ``duration`` seconds and a warm-up.

    ``say`` hears of each measurement before and after it. Raises LoadError when nothing is answered.
    """
    worst: list[Generator] = []

    def measure(step: Probe, points: list[Point]) -> Point:
        say(step, None)
        warm_up = warm_up_for(step.concurrency, points, duration)
        measured = bench.closed(step.concurrency, warm_up=warm_up, duration=duration)
        if measured.summary.generator is not None:
            worst.append(measured.summary.generator)
        point = measured.point(step.concurrency)
        say(step, point)
        return point

    points, answer = search(measure, within)
    generator = max(worst, key=lambda one: (one.saturated, one.lag_p99, one.cpu), default=None)
    return Tuned(tuple(points), answer, generator)


def warm_up_for(concurrency: int, points: list[Point], duration: float) -> float:
    """Seconds until a load is steady: about as long as an answer takes, as far as earlier measurements tell."""
    known = [point for point in points if point.total]
    if not known:
        return min(SHORTEST, duration)
    near = min(known, key=lambda point: abs(point.concurrency - concurrency))
    expected = (near.total or 0.0) * max(1.0, concurrency / near.concurrency)
    return min(max(SHORTEST, expected), max(SHORTEST, duration))
