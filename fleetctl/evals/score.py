"""From verdicts to a score. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fleetctl.evals.judge import Verdict


@dataclass(frozen=True)
class Score:
    """``total`` (0 to 100) is the mean of the categories, each the percentage of its answers that are right."""

    total: float
    categories: dict[str, float]
    verdicts: tuple[Verdict, ...]

    @property
    def failures(self) -> tuple[Verdict, ...]:
        """What was not right, in the order of the suite."""
        return tuple(verdict for verdict in self.verdicts if not verdict.right)


def score(verdicts: Iterable[Verdict]) -> Score:
    """The score of the answers to a suite; ValueError for none."""
    told = tuple(verdicts)
    if not told:
        raise ValueError("no verdict")
    groups: dict[str, list[bool]] = {}
    for verdict in told:
        groups.setdefault(verdict.scenario.category, []).append(verdict.right)
    categories = {name: 100 * sum(right) / len(right) for name, right in groups.items()}
    return Score(sum(categories.values()) / len(categories), categories, told)
