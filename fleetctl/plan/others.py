"""What is left for the rest of each box, held against what services there took at their worst. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fleetctl.facts.types import Observed, Others
from fleetctl.plan.difference import Difference
from fleetctl.render.release import Budget, Release
from fleetctl.spec.units import gib

PEAKS = 40
"""A fortieth of a box's memory is for peaks while engines start: on a GB10 3.0 GiB, where CUDA's own reading of free
memory was seen 2.6 to 2.7 GiB under MemAvailable."""
LONG_ENOUGH = 86_400.0
"""Seconds of measurement: services have their nightly work."""
NAMED = 3
SMALL = 2**30


@dataclass
class Rest:
    """What is told of the boxes of a move."""

    lines: dict[str, str] = field(default_factory=dict)
    """Box → what other services take there at their worst, in one line."""
    refusals: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Taken:
    """What others take of a box at their worst, in bytes.

    ``together`` is the most at one time, ``stays`` the sum of the worst of each. Units that are ``gone`` are not in it.
    """

    services: Mapping[str, int]
    stays: int
    together: int
    gone: frozenset[str]

    def __str__(self) -> str:
        largest = sorted(self.services.items(), key=lambda item: -item[1])[:NAMED]
        parts = [f"{name.removesuffix('.service')} {gib(size)}" for name, size in largest]
        more = ", …" if len(self.services) > NAMED else ""
        return f"{', '.join(parts)}{more}: {gib(self.together)} together" if parts else "nothing"


@dataclass(frozen=True)
class Short:
    """Too little is left for others: ``what`` is wrong, and what to ``write``."""

    what: str
    write: str

    def __str__(self) -> str:
        return f"{self.what}; {self.write}"


def rest_of_boxes(target: Release, observed: Observed, difference: Difference) -> Rest:
    """Boxes of the target's engines. Only boxes where an engine starts can be refused or warned of.

    Refused is what a guard has measured to be too little. What was seen in one look is a warning: a service that is
    about to stop may be in it.
    """
    found = Rest()
    for budget in target.budgets:
        box, others = budget.box, observed[budget.box].others
        if others is None:
            continue
        taken = taken_on(target, box, observed[box].superseded, others)
        found.lines[box] = f"other services at their worst: {taken} ({_how(others)})"
        if not difference.boxes[box].coming:
            continue
        left = left_for_others(target, budget)
        short = too_little(taken, left, budget.memory)
        if short is not None and taken.together > left and others.measured:
            found.refusals.append(f"{box}: {short}")
        elif short is not None:
            found.warnings.append(f"{box}: {short}")
        elif taken.stays > left:
            found.warnings.append(
                f"{box}: each at its worst at the same time, other services would take {gib(taken.stays)}, and "
                f"{gib(left)} are left for them; it was not seen yet"
            )
        if 0 < others.measured < LONG_ENOUGH:
            found.warnings.append(
                f"{box}: what other services take was {_how(others)}; their worst may be still to come"
            )
        for name, size in others.foreign.items():
            if name not in taken.gone:
                found.warnings.append(
                    f"{box}: {name} looks like an engine that is not fleetctl's and took {gib(size)}, which is not in "
                    "the sum: list it under superseded: if it goes, raise reserve: if it stays"
                )
    return found


def taken_on(target: Release, box: str, superseded: Iterable[str], others: Others) -> Taken:
    """What others take of a box at their worst, but for units that a release supersedes, or that were before."""
    gone = frozenset({*target.superseded.get(box, ()), *superseded})
    services = {name: size for name, size in others.services.items() if name not in gone}
    stays = sum(services.values()) + others.total - sum(others.services.values())
    together = others.together if len(services) == len(others.services) else min(others.together, stays)
    return Taken(services, stays, together, gone)


def left_for_others(target: Release, budget: Budget) -> int:
    """Bytes that engines leave: never less than the reserve, more where they do not take all that they could.

    A pool may take all that it has.
    """
    if target.lodgers_on(budget.box):
        return budget.reserve
    return budget.memory - int(sum(rank.share for _, rank in target.ranks_on(budget.box)) * budget.memory)


def too_little(taken: Taken, left: int, memory: int) -> Short | None:
    """What is wrong with what is left; None: it is enough, with the margin for peaks."""
    margin = memory // PEAKS
    if taken.together + margin <= left:
        return None
    hurt = max(taken.services, key=lambda name: taken.services[name], default="the rest of the box")
    if taken.together > left:
        what = f"{gib(taken.together - left)} less than other services took at their worst ({taken})"
    else:
        what = (
            f"enough for what other services took at their worst ({taken}), but not for "
            f"{gib(margin)} of peaks while engines start besides"
        )
    unit, name = (2**30, "GiB") if memory > 16 * SMALL else (2**20, "MiB")
    wanted = -(-(taken.together + margin) // unit)
    return Short(
        f"engines leave {gib(left)}, {what}: {hurt} would be hurt first",
        f"write reserve: {wanted}{name}, and less gpu_memory_utilization: where it is given",
    )


def _how(others: Others) -> str:
    if not others.measured or others.since is None:
        peak = f"; at most {gib(others.peak)} with their page cache" if others.peak is not None else ""
        return f"seen once: a guard measures it over time{peak}"
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(others.since))
    return f"measured for {_long(others.measured)} since {since}"


def _long(length: float) -> str:
    for unit, size in (("days", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if length >= 2 * size:
            return f"{length / size:.0f} {unit}"
    return f"{length:.0f} s"
