"""What is left for the rest of each box, held against what services there took at their worst. Pure."""

from __future__ import annotations

import time
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
        gone = {*target.superseded.get(box, ()), *observed[box].superseded}
        services = {name: size for name, size in others.services.items() if name not in gone}
        stays = sum(services.values()) + others.total - sum(others.services.values())
        together = others.together if len(services) == len(others.services) else min(others.together, stays)
        found.lines[box] = f"other services at their worst: {_sum(services, together)} ({_how(others)})"
        if not difference.boxes[box].start:
            continue
        left = _left(target, budget)
        short = _short(box, services, together, left, budget.memory)
        if short is not None and together > left and others.measured:
            found.refusals.append(short)
        elif short is not None:
            found.warnings.append(short)
        elif stays > left:
            found.warnings.append(
                f"{box}: each at its worst at the same time, other services would take {gib(stays)}, and "
                f"{gib(left)} are left for them; it was not seen yet"
            )
        if 0 < others.measured < LONG_ENOUGH:
            found.warnings.append(
                f"{box}: what other services take was {_how(others)}; their worst may be still to come"
            )
        for name, size in others.foreign.items():
            if name not in gone:
                found.warnings.append(
                    f"{box}: {name} looks like an engine that is not fleetctl's and took {gib(size)}, which is not in "
                    "the sum: list it under superseded: if it goes, raise reserve: if it stays"
                )
    return found


def _left(target: Release, budget: Budget) -> int:
    """Bytes that engines leave: never less than the reserve, more where they do not take all that they could."""
    return budget.memory - int(sum(rank.share for _, rank in target.ranks_on(budget.box)) * budget.memory)


def _short(box: str, services: dict[str, int], together: int, left: int, memory: int) -> str | None:
    """What is wrong with what is left; None: it is enough, with the margin for peaks."""
    margin = memory // PEAKS
    if together + margin <= left:
        return None
    hurt = max(services, key=lambda name: services[name], default="the rest of the box")
    if together > left:
        what = f"{gib(together - left)} less than other services took at their worst ({_sum(services, together)})"
    else:
        what = (
            f"enough for what other services took at their worst ({_sum(services, together)}), but not for "
            f"{gib(margin)} of peaks while engines start besides"
        )
    unit = 2**30 if memory > 16 * SMALL else 2**20
    wanted = -(-(together + margin) // unit)
    return (
        f"{box}: engines leave {gib(left)}, {what}: {hurt} would be hurt first; write reserve: "
        f"{wanted}{'GiB' if unit == 2**30 else 'MiB'}, and less gpu_memory_utilization: where it is given"
    )


def _sum(services: dict[str, int], together: int) -> str:
    largest = sorted(services.items(), key=lambda item: -item[1])[:NAMED]
    parts = [f"{name.removesuffix('.service')} {gib(size)}" for name, size in largest]
    return (
        f"{', '.join(parts)}{', …' if len(services) > NAMED else ''}: {gib(together)} together" if parts else "nothing"
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
