"""Throughput against concurrency, as noisy measurements tell of it. Pure.

The model has a knee: up to it the logarithm of the throughput rises as a parabola of the logarithm of the
concurrency, beyond it it stays as it is or goes on as another one. Where the knee is, which of the two comes then, and
what the parabolas are, is not known: each is as likely as it explains the measurements (Bayesian linear regression for
each, weighed by its evidence; Bishop 2006, section 3.4). Noise that is a share of the throughput is the same everywhere
in logarithms. Because every measurement says something of the whole curve, few are needed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

FLAT = 0.995  # of the most: curves are no higher than that by chance
LEAST = 1e-3  # of the most: what counts for less, or for nothing at all
MISFIT = (0.02, 0.05)  # by how much a real curve differs from such a model, as a share of it: up to a doubling away
# from the knee, and what is added for each further one. What is far away says little of the knee.

# What is thought of the coefficients before anything is measured, as mean and deviation: the height at the knee, slope
# and bend before it, slope and bend beyond it; per doubling. With a slope of log 2 twice as many give twice as much.
_RISE = ((0.0, 0.3), (0.3, 0.25), (-0.02, 0.05))
_FALL = ((0.25, 0.2), (0.03, 0.06))
_STAY = ((0.0, 1e-4), (0.0, 1e-4))
_KINDS = (_RISE + _STAY, _RISE + _FALL)

Row = tuple[float, ...]


@dataclass(frozen=True)
class Belief:
    """Curves that are possible after what was measured, over all ``rungs``, and the rung where each has its top."""

    rungs: tuple[int, ...]
    curves: tuple[tuple[float, ...], ...]
    tops: tuple[int, ...]

    @property
    def mean(self) -> tuple[float, ...]:
        """The mean of the curves at each rung."""
        return tuple(sum(curve[i] for curve in self.curves) / len(self.curves) for i in range(len(self.rungs)))


def believe(
    measured: Sequence[tuple[int, float]], rungs: Sequence[int], noise: float, *, curves: int = 300, seed: int = 0
) -> Belief:
    """The belief after measurements (concurrency, throughput) whose relative noise is ``noise``."""
    scale = max(throughput for _, throughput in measured) or 1.0
    logs = [math.log(max(throughput / scale, LEAST)) for _, throughput in measured]
    fits = []
    for index, rung in enumerate(rungs):
        aways = [math.log2(n / rung) for n, _ in measured]
        rows = [(_row(away), y, _precision(away, noise)) for away, y in zip(aways, logs, strict=True)]
        fits += [(index, _fit(rows, prior)) for prior in _KINDS]
    most = max(fit.evidence for _, fit in fits)
    weights = [math.exp(fit.evidence - most) for _, fit in fits]
    rng = random.Random(seed)
    chosen = rng.choices(fits, weights, k=curves)
    aways_from = [[math.log2(n / rung) for n in rungs] for rung in rungs]
    drawn = []
    for bend, fit in chosen:
        coefficients = fit.draw(rng)
        drawn.append(tuple(scale * math.exp(_height(coefficients, away)) for away in aways_from[bend]))
    # Of a flat top the first rung counts.
    tops = (next(i for i, value in enumerate(curve) if value >= FLAT * max(curve)) for curve in drawn)
    return Belief(tuple(rungs), tuple(drawn), tuple(tops))


def _height(coefficients: Sequence[float], away: float) -> float:
    """The logarithm of the curve, ``away`` doublings from its knee."""
    top, slope, bend, fall, level = coefficients
    return top + (slope + bend * away) * away if away <= 0 else top + (level * away - fall) * away


def _precision(away: float, noise: float) -> float:
    """How much a measurement says: one over its variance."""
    misfit = MISFIT[0] + MISFIT[1] * max(0.0, abs(away) - 1)
    return 1 / (noise * noise + misfit * misfit)


def _row(away: float) -> Row:
    return (1.0, away, away * away, 0.0, 0.0) if away <= 0 else (1.0, 0.0, 0.0, -away, away * away)


@dataclass(frozen=True)
class _Fit:
    """Coefficients for one place of the knee: their mean, the root of their precision, and the evidence for it."""

    mean: tuple[float, ...]
    root: tuple[tuple[float, ...], ...]
    evidence: float

    def draw(self, rng: random.Random) -> list[float]:
        """Coefficients that are possible."""
        normal = [rng.gauss(0.0, 1.0) for _ in self.mean]
        return [mean + off for mean, off in zip(self.mean, _back(self.root, normal), strict=True)]


def _fit(rows: Sequence[tuple[Row, float, float]], prior: Sequence[tuple[float, float]]) -> _Fit:
    """The fit to rows of what a coefficient counts for, the measurement and its precision."""
    size = len(prior)
    certain = [1 / deviation**2 for _, deviation in prior]
    matrix = [
        [sum(sure * row[i] * row[j] for row, _, sure in rows) + (certain[i] if i == j else 0.0) for j in range(size)]
        for i in range(size)
    ]
    vector = [sum(sure * row[i] * y for row, y, sure in rows) + prior[i][0] * certain[i] for i in range(size)]
    root = _cholesky(matrix)
    half = _forward(root, vector)
    evidence = 0.5 * sum(one * one for one in half) - sum(math.log(root[i][i]) for i in range(size))
    evidence += 0.5 * sum(math.log(one) - mean * mean * one for (mean, _), one in zip(prior, certain, strict=True))
    evidence += 0.5 * sum(math.log(sure) - sure * y * y for _, y, sure in rows)
    return _Fit(tuple(_back(root, half)), tuple(tuple(row) for row in root), evidence)


def _cholesky(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """The lower triangle whose product with its transpose is a positive matrix."""
    size = len(matrix)
    lower = [[0.0] * size for _ in range(size)]
    for i in range(size):
        for j in range(i + 1):
            rest = matrix[i][j] - sum(lower[i][k] * lower[j][k] for k in range(j))
            lower[i][j] = math.sqrt(max(rest, 1e-12)) if i == j else rest / lower[j][j]
    return lower


def _forward(lower: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    found: list[float] = []
    for i, value in enumerate(values):
        found.append((value - sum(lower[i][k] * found[k] for k in range(i))) / lower[i][i])
    return found


def _back(lower: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    size = len(values)
    found = [0.0] * size
    for i in reversed(range(size)):
        rest = values[i] - sum(lower[k][i] * found[k] for k in range(i + 1, size))
        found[i] = rest / lower[i][i]
    return found
