"""Make before break: whether the engines of two layouts can run side by side while traffic moves. Pure."""

from __future__ import annotations

import re

from fleetctl.facts.types import BoxFacts, Observed
from fleetctl.plan.difference import UNIT_FOLDER, BoxDifference, Difference
from fleetctl.render.release import Budget, Engine, Rank, Release
from fleetctl.spec.units import gib


def why_not_beside(source: Release, target: Release, observed: Observed, difference: Difference) -> str | None:
    """What keeps the new engines from being started and proved while the old ones serve; None when nothing does."""
    if source.layout is None or target.layout is None or not difference.start:
        return "no layout of fleetctl comes before" if source.layout is None else "no engine starts"
    if source.pool is not None or target.pool is not None:
        return "a pool has all of the memory that the other engines of its boxes leave"
    if source.layout == target.layout:
        return "engines of one layout take each other's place"
    if source.proxy is None or target.proxy is None or source.proxy.boxes != target.proxy.boxes:
        return "the proxy is not on the same boxes before and after"
    for box, lack in difference.boxes.items():
        reason = _away_first(box, lack, observed[box]) or _one_box(box, lack, source, target, observed[box])
        if reason:
            return reason
    return None


def _away_first(box: str, lack: BoxDifference, facts: BoxFacts) -> str | None:
    """Foreign units on the move: what memory they hold or will hold is not known."""
    running = [unit for unit in lack.supersede if not facts.units[unit].down]
    if running:
        return f"{', '.join(running)} on {box} has to stop first, and what memory it holds is not known"
    if lack.give_back:
        return f"{', '.join(lack.give_back)} on {box} comes back, and what memory it wants is not known"
    return None


def _one_box(box: str, lack: BoxDifference, source: Release, target: Release, facts: BoxFacts) -> str | None:
    if not lack.start:
        return None
    old = [(engine, rank) for engine, rank in source.ranks_on(box) if rank.unit in lack.stop]
    strange = sorted(set(lack.stop) - {rank.unit for _, rank in old})
    strange += sorted(set(lack.leftovers) - {state.engine for state in lack.stop.values()})
    if strange:
        return f"{', '.join(strange)} has to leave {box} first"
    new = target.ranks_on(box)
    budget = next(budget for budget in target.budgets if budget.box == box)
    return (
        _memory(budget, [rank for _, rank in old], [rank for _, rank in new], facts)
        or _ports(box, _listening(old), _listening(new))
        or _conflict(box, source, target, {rank.unit for _, rank in old}, {rank.unit for _, rank in new})
    )


def _memory(budget: Budget, old: list[Rank], new: list[Rank], facts: BoxFacts) -> str | None:
    """Shares are hundredths of the memory that the target's file gives the box; sizes are bytes."""
    parts = [rank.share * budget.memory for rank in (*old, *new)]
    room = budget.memory - budget.reserve
    missing = sum(parts) - room
    # Shares are rounded to a ten-thousandth of the memory at most.
    if missing > budget.memory / 10_000:
        asked = " + ".join(gib(part) for part in parts)
        return (
            f"the old and the new engine do not fit {budget.box} together: {asked} = {gib(sum(parts))}, "
            f"{gib(room)} are for engines: {gib(missing)} missing"
        )
    coming = sum(parts[len(old) :])
    available = facts.memory["available"]
    if old and available < coming:
        return (
            f"{gib(available)} are available on {budget.box} now and the new engine asks for {gib(coming)}: "
            f"{gib(coming - available)} missing"
        )
    return None


def _listening(pairs: list[tuple[Engine, Rank]]) -> dict[int, str]:
    return {port: engine.id for engine, rank in pairs if rank.rank == 0 for port in engine.listens}


def _ports(box: str, old: dict[int, str], new: dict[int, str]) -> str | None:
    for port in sorted(set(old) & set(new)):
        return f"{old[port]} and {new[port]} both listen on port {port} of {box}: give one of them another port"
    return None


def _conflict(box: str, source: Release, target: Release, old: set[str], new: set[str]) -> str | None:
    for release, mine, others in ((source, old, new), (target, new, old)):
        for file in release.files.get(box, ()):
            unit = file.path.removeprefix(UNIT_FOLDER)
            named = set(re.findall(r"^Conflicts=(\S+)$", file.content, re.MULTILINE)) & others
            if unit in mine and named:
                return f"{unit} on {box} has Conflicts={sorted(named)[0]} (fleetctl apply renews the files)"
    return None
