"""Percentiles, exact: all values of a run are kept, some hundred thousand at most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value that ``share`` percent of the values do not exceed (nearest rank); None where there is none."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share / 100 * len(ordered)) - 1)]


@dataclass(frozen=True)
class Spread:
    """A distribution in a few numbers, in the unit of its values."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


def spread(values: Sequence[float]) -> Spread | None:
    """The distribution of values; None where there is none."""
    if not values:
        return None
    ordered = sorted(values)

    def at(share: float) -> float:
        return ordered[max(0, math.ceil(share / 100 * len(ordered)) - 1)]

    return Spread(len(ordered), sum(ordered) / len(ordered), at(50), at(90), at(99), ordered[-1])
