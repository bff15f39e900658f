"""From one engine or several to the figures that people read. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields

from fleetctl.watch.reading import Reading, weighed
from fleetctl.watch.sample import Counts, Figures

COUNTERS = tuple(one.name for one in fields(Counts))


@dataclass(frozen=True)
class Step:
    """One engine since the sample before: what it says now, and what its counters grew by in so many seconds.

    ``seconds`` None: there is no sample before, or none that could be compared.
    """

    reading: Reading
    seconds: float | None = None
    more: Mapping[str, float] = field(default_factory=dict)

    def rate(self, counter: str) -> float | None:
        """Growth per second; None where it is not known."""
        return None if self.seconds is None or counter not in self.more else self.more[counter] / self.seconds


def counts_of(sums: Iterable[Mapping[str, float]]) -> Counts:
    """Counters of several engines together. One that no engine has is not known."""
    found: dict[str, float] = {}
    for one in sums:
        for counter, value in one.items():
            found[counter] = found.get(counter, 0.0) + value
    return Counts(**{counter: value for counter, value in found.items() if counter in COUNTERS})


def figures_of(step: Step) -> Figures:
    """The figures of one engine."""
    return together([step])


def together(steps: list[Step]) -> Figures:
    """The figures of several engines: rates and requests add up; shares and times are those of what happened in all."""
    readings = [step.reading for step in steps]
    requests = _sum(step.rate("requests") for step in steps)
    caches = [(r.cache_usage, r.cache_tokens) for r in readings if r.cache_usage is not None]
    return Figures(
        running=_sum(reading.running for reading in readings),
        waiting=_sum(reading.waiting for reading in readings),
        prompt_rate=_sum(step.rate("prompt_tokens") for step in steps),
        generation_rate=_sum(step.rate("generation_tokens") for step in steps),
        request_rate=None if requests is None else 60 * requests,
        first_token=_share(steps, "first_token_seconds", "first_tokens"),
        cache_usage=weighed(caches),
        prefix_hit_rate=_share_or(steps, "prefix_hits", "prefix_queries", lambda r: r.prefix_hit_rate),
        acceptance=_share_or(steps, "accepted_tokens", "draft_tokens", lambda r: r.acceptance),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum of what is known; None when nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _share(steps: Iterable[Step], part: str, whole: str) -> float | None:
    """What one counter grew by for each that the other grew by, over those that have both."""
    both = [step.more for step in steps if part in step.more and whole in step.more]
    grown = sum(more[whole] for more in both)
    return sum(more[part] for more in both) / grown if grown > 0 else None


def _share_or(steps: list[Step], part: str, whole: str, gauge: Callable[[Reading], float | None]) -> float | None:
    """The same, or what engines that have no counters for it say themselves, their mean."""
    counted = _share(steps, part, whole)
    if counted is not None or any(whole in step.more for step in steps):
        return counted
    known = [value for step in steps if (value := gauge(step.reading)) is not None]
    return sum(known) / len(known) if known else None
