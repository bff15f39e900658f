"""Which settings of an engine to start it with next, and what the measurements say of them. Pure.

One setting after the other (a coordinate search). In the first round the engine starts as it is, and with each
candidate. What came out best is then started once more, and after it the engine as it is: something that changes in
the course of a search (a box that gets warm, a cache on the disk that fills) favours the one in the first round and the
other in the second. A candidate is taken when it is better in both rounds by more than noise; else the setting stays.
"""

from __future__ import annotations

import statistics
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fleetctl.bench.difference import Interval, difference


@dataclass(frozen=True)
class Setting:
    """One setting: what it is now (None: not set, the engine's own default), and what is to be tried."""

    name: str
    present: float | None
    candidates: tuple[float, ...]
    skipped: Mapping[float, str] = field(default_factory=dict)
    """Candidates that are not started, and why."""


@dataclass(frozen=True)
class Start:
    """Start the engine with these values, because of this. A setting that is None is not given."""

    values: Mapping[str, float | None]
    why: str


@dataclass(frozen=True)
class Started:
    """What one start gave: tokens/s in each window. ``why``: why it was not measured. Times are seconds."""

    values: Mapping[str, float | None]
    rates: tuple[float, ...] = ()
    why: str | None = None
    load: float | None = None
    ttft: float | None = None
    tpot: float | None = None

    @property
    def rate(self) -> float:
        """The mean."""
        return statistics.fmean(self.rates) if self.rates else 0.0


class Says(StrEnum):
    """What is said of a candidate."""

    BETTER = "better"
    LESS = "better, and less than the best of them"
    WORSE = "worse"
    SAME = "no difference that can be told from noise"
    ONCE = "better once, and not when it was tried again"
    NOT = "not measured"


@dataclass(frozen=True)
class Verdict:
    """What is said of one candidate; ``change`` against what is now, of the last round that it was in."""

    setting: str
    value: float
    says: Says
    why: str = ""
    rate: float | None = None
    present: float | None = None
    """tokens/s of what is now, in the same round."""
    change: Interval | None = None
    ttft: float | None = None
    tpot: float | None = None


@dataclass(frozen=True)
class Outcome:
    """The values to take, and what is said of every candidate."""

    chosen: Mapping[str, float | None]
    verdicts: tuple[Verdict, ...]
    starts: int


def most_starts(settings: Sequence[Setting]) -> int:
    """How often the engine is started at most."""
    return sum(len(one.candidates) + 3 for one in settings if one.candidates)


def search(settings: Sequence[Setting]) -> Generator[Start, Started, Outcome]:
    """Yields what to start, is sent what that gave, and returns the outcome."""
    chosen: dict[str, float | None] = {one.name: one.present for one in settings}
    verdicts: list[Verdict] = []
    last: Started | None = None
    starts = 0
    for one in settings:
        verdicts += [Verdict(one.name, value, Says.NOT, why) for value, why in one.skipped.items()]
        if not one.candidates:
            continue
        base = last if last is not None and last.values == chosen and last.rates else None
        if base is None:
            base = yield Start(dict(chosen), "as it is now")
            starts += 1
        tried: list[Started] = []
        for value in one.candidates if base.rates else ():
            tried.append((yield Start({**chosen, one.name: value}, f"{one.name} {value:g}")))
            starts += 1
        last = tried[-1] if tried else base
        if not base.rates:
            why = f"it could not be measured as it is now: {base.why}"
            verdicts += [Verdict(one.name, value, Says.NOT, why) for value in one.candidates]
            continue
        best = max((start for start in tried if start.rates), key=lambda start: start.rate, default=None)
        second: tuple[Started, Started] | None = None
        if best is not None and difference(base.rates, best.rates).low > 0:
            again = yield Start(best.values, f"{one.name} {best.values[one.name]:g} once more, to be sure")
            last = yield Start(dict(chosen), "as it is now once more, to be sure")
            second, starts = (last, again), starts + 2
        told = [_verdict(one, base, start, second if start is best else None) for start in tried]
        verdicts += told
        taken = next((verdict.value for verdict in told if verdict.says is Says.BETTER), None)
        if taken is not None:
            chosen[one.name] = taken
    return Outcome(chosen, tuple(verdicts), starts)


def _verdict(one: Setting, base: Started, start: Started, second: tuple[Started, Started] | None) -> Verdict:
    value = start.values[one.name]
    assert value is not None
    if not start.rates:
        return Verdict(one.name, value, Says.NOT, start.why or "")
    change = difference(base.rates, start.rates)
    if second is not None:
        now, again = second
        missing = next((start.why for start in second if not start.rates), None)
        if missing is not None:
            return _told(one, value, Says.ONCE, base, start, change, f"the second time: {missing}")
        change = difference(now.rates, again.rates)
        return _told(one, value, Says.BETTER if change.low > 0 else Says.ONCE, now, again, change)
    says = Says.LESS if change.low > 0 else Says.WORSE if change.high < 0 else Says.SAME
    return _told(one, value, says, base, start, change)


def _told(
    one: Setting, value: float, says: Says, now: Started, start: Started, change: Interval, why: str = ""
) -> Verdict:
    return Verdict(one.name, value, says, why, start.rate, now.rate, change, start.ttft, start.tpot)


def as_record(outcome: Outcome) -> dict[str, Any]:
    """The outcome as JSON has it."""
    return {
        "chosen": dict(outcome.chosen),
        "starts": outcome.starts,
        "verdicts": [
            {
                **{key: getattr(one, key) for key in ("setting", "value", "why", "rate", "present", "ttft", "tpot")},
                "says": one.says.value,
                "change": None if one.change is None else [one.change.middle, one.change.low, one.change.high],
            }
            for one in outcome.verdicts
        ],
    }


def from_record(record: Mapping[str, Any]) -> Outcome:
    """The outcome of its JSON."""
    verdicts = [
        Verdict(
            **{
                **one,
                "says": Says(one["says"]),
                "change": None if one["change"] is None else Interval(*one["change"]),
            }
        )
        for one in record["verdicts"]
    ]
    return Outcome(dict(record["chosen"]), tuple(verdicts), int(record["starts"]))
