"""Means and how sure they are. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

Z = 1.959964  # of the normal distribution, for 95 %
ROUNDS = 2000


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % confidence interval."""

    mean: float
    low: float
    high: float


def estimate(values: Sequence[float], seed: int = 1) -> Estimate:
    """Mean of scores between 0 and 1; ValueError for none.

    Where all are 0 or 1 the interval is Wilson's (E. B. Wilson, 1927), otherwise a percentile bootstrap.
    """
    if not values:
        raise ValueError("no value")
    count, mean = len(values), sum(values) / len(values)
    if all(value in (0.0, 1.0) for value in values):
        middle = (mean + Z * Z / (2 * count)) / (1 + Z * Z / count)
        half = Z / (1 + Z * Z / count) * math.sqrt(mean * (1 - mean) / count + Z * Z / (4 * count * count))
        return Estimate(mean, min(mean, max(0.0, middle - half)), max(mean, min(1.0, middle + half)))
    return Estimate(mean, *_bootstrap(values, seed))


def difference(one: Sequence[float], other: Sequence[float], seed: int = 1) -> Estimate:
    """Mean of ``one`` minus that of ``other`` over the same tasks, with a paired bootstrap interval."""
    gaps = [a - b for a, b in zip(one, other, strict=True)]
    return Estimate(sum(gaps) / len(gaps), *_bootstrap(gaps, seed))


def _bootstrap(values: Sequence[float], seed: int) -> tuple[float, float]:
    dice, count = random.Random(seed), len(values)
    means = sorted(sum(dice.choices(values, k=count)) / count for _ in range(ROUNDS))
    return means[int(0.025 * ROUNDS)], means[int(0.975 * ROUNDS) - 1]


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest value that at least ``part`` (0 to 1) of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]
