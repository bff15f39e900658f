"""Whether two sets of measurements differ, and by how much, with what can be told from noise. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Two-sided 95 % of Student's t for 1 to 30 degrees of freedom; the normal distribution's beyond.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_NORMAL = 1.96
LEAST_NOISE = 0.002
"""Relative: repeats that are closer to each other than that are so by chance."""


@dataclass(frozen=True)
class Interval:
    """A relative difference (0.1: 10 % more) and the bounds between which it is with a confidence of 95 %."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:+.1%} (95 %: {self.low:+.1%} to {self.high:+.1%})"


def difference(before: Sequence[float], after: Sequence[float]) -> Interval:
    """How much more ``after`` is than ``before``, as a share of its mean (Welch 1947: variances may differ).

    Raises ValueError for fewer than two measurements of either, or a mean of nothing.
    """
    if min(len(before), len(after)) < 2 or statistics.fmean(before) <= 0:
        raise ValueError("a difference needs two measurements of each, and something to compare with")
    base = statistics.fmean(before)
    parts = [_variance(values, base) / len(values) for values in (before, after)]
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(values) - 1) for part, values in zip(parts, (before, after), strict=True)
    )
    middle = statistics.fmean(after) / base - 1
    margin = student(freedom) * math.sqrt(sum(parts)) / base
    return Interval(middle, middle - margin, middle + margin)


def _variance(values: Sequence[float], base: float) -> float:
    return max(statistics.variance(values), (LEAST_NOISE * base) ** 2)


def student(freedom: float) -> float:
    """The two-sided 95 % quantile of Student's t, of whole degrees of freedom rounded down."""
    whole = max(1, int(freedom))
    return _T95[whole - 1] if whole <= len(_T95) else _NORMAL
