"""What a search for the knee found, as a page that needs nothing else: drawings, and all numbers.

The drawings are SVG made here; the numbers are in tables, and once more as JSON for programs.
"""

from __future__ import annotations

import html
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from fleetctl import __version__
from fleetctl.bench.knee import Point
from fleetctl.bench.settings import Outcome, Says
from fleetctl.bench.tune import Tuned
from fleetctl.resources import root_text

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 720, 300, 64, 40, 16, 16


@dataclass(frozen=True)
class Told:
    """One engine's search, with what it was of and when (UTC)."""

    what: str
    model: str
    mix: str
    at: str
    tuned: Tuned

    @classmethod
    def now(cls, what: str, model: str, mix: str, tuned: Tuned) -> Told:
        """Of this moment."""
        return cls(what, model, mix, time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), tuned)


@dataclass(frozen=True)
class Tried:
    """Settings of one engine that were tried at a concurrency; ``measured`` has what every start gave."""

    what: str
    mix: str
    at: str
    concurrency: int
    outcome: Outcome
    measured: Sequence[dict[str, Any]]

    @classmethod
    def now(cls, what: str, mix: str, concurrency: int, outcome: Outcome, measured: Sequence[dict[str, Any]]) -> Tried:
        """Of this moment."""
        return cls(what, mix, time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), concurrency, outcome, measured)

    def taken(self) -> dict[str, float]:
        """Setting → value, of those that came out better."""
        return {one.setting: one.value for one in self.outcome.verdicts if one.says is Says.BETTER}

    def better(self, setting: str) -> float | None:
        """The value of a setting that came out better; None where it stays."""
        return self.taken().get(setting)


def write_report(file: Path, found: Sequence[Told] = (), tried: Sequence[Tried] = ()) -> None:
    """Write the page."""
    environment = Environment(undefined=StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(root_text("templates", "tune.html.j2"))
    engines = [_engine(told) for told in found]
    # In a script element `</` would end it, whatever is around it.
    numbers = [asdict(told) for told in found] + [asdict(told) for told in tried]
    raw = json.dumps(numbers, indent=1).replace("</", "<\\/")
    text = page.render(engines=engines, tried=tried, raw=raw, version=__version__)
    file.write_text(text + "\n", encoding="utf-8")


def _engine(told: Told) -> dict[str, Any]:
    points, answer = told.tuned.points, told.tuned.answer
    latency = [(p.concurrency, p.total) for p in points if p.total is not None]
    first = [(p.concurrency, p.ttft) for p in points if p.ttft is not None]
    return {
        "told": told,
        "answer": answer,
        "points": points,
        "generator": told.tuned.generator,
        "drawings": [
            (
                "Tokens a second",
                drawing([(p.concurrency, p.throughput) for p in points], answer.concurrency, answer.curve),
            ),
            *([("Seconds to the whole answer", drawing(latency, answer.concurrency))] if latency else []),
            *([("Seconds to the first token", drawing(first, answer.concurrency))] if first else []),
        ],
    }


def drawing(points: Sequence[tuple[float, float]], chosen: float, curve: Sequence[tuple[float, float]] = ()) -> str:
    """An SVG of values against concurrency (logarithmic), the chosen one marked, with a curve through them if given."""
    highest = 1.08 * max(value for _, value in (*points, *curve)) or 1.0
    most = max(2.0, *(x for x, _ in points), chosen)

    def x(concurrency: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log2(concurrency) / math.log2(most)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * value / highest

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">', *_axes(x, y, most, highest)]
    parts.append(
        f'<line class="chosen" x1="{x(chosen):.1f}" x2="{x(chosen):.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
    )
    if curve:
        path = " ".join(f"{x(n):.1f},{y(value):.1f}" for n, value in curve)
        parts.append(f'<polyline class="curve" points="{path}"/>')
    for n, value in points:
        title = html.escape(f"{n:g} at once: {value:.4g}")
        parts.append(f'<circle cx="{x(n):.1f}" cy="{y(value):.1f}" r="4"><title>{title}</title></circle>')
    return "\n".join([*parts, "</svg>"])


def _axes(x: Callable[[float], float], y: Callable[[float], float], most: float, highest: float) -> list[str]:
    parts = []
    step = 10 ** math.floor(math.log10(highest / 2))
    step = next(step * times for times in (1, 2, 5, 10) if highest / (step * times) <= 5)
    for number in range(int(highest / step) + 1):
        value = number * step
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
        )
        parts.append(f'<text class="left" x="{_LEFT - 8}" y="{y(value) + 4:.1f}">{value:g}</text>')
    n = 1
    while n <= most:
        parts.append(f'<text class="below" x="{x(n):.1f}" y="{_HEIGHT - _BOTTOM + 18}">{n}</text>')
        n *= 2
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text class="below" x="{middle:.0f}" y="{_HEIGHT - 4}">requests at once</text>')
    return parts


def by_concurrency(points: Sequence[Point]) -> list[tuple[int, float, float | None, float | None, int]]:
    """Concurrency, means of throughput, of seconds to the first token and to the whole answer, and measurements."""
    found = []
    for concurrency in sorted({point.concurrency for point in points}):
        here = [point for point in points if point.concurrency == concurrency]
        first = [point.ttft for point in here if point.ttft is not None]
        total = [point.total for point in here if point.total is not None]
        found.append(
            (
                concurrency,
                sum(point.throughput for point in here) / len(here),
                sum(first) / len(first) if first else None,
                sum(total) / len(total) if total else None,
                len(here),
            )
        )
    return found
