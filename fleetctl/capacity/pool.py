"""The memory of one box that a pool has, and what of it each of its models takes. Pure; all sizes are bytes.

Engines that are pinned are loaded together and for good, so that they have to fit together; every other one has to fit
beside them, by itself: which of those are loaded is the worker's to decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleetctl.errors import RefusedError
from fleetctl.spec.fleet import Fleet
from fleetctl.spec.units import gib

BESIDE_WEIGHTS = 2**30
"""What the server of an encoder takes beside its weights: its program, and the texts of one batch."""


@dataclass(frozen=True)
class Lodger:
    """A model of the pool on one box."""

    model: str
    memory: int
    """What its engine takes once it is loaded."""
    pinned: bool
    told: str
    """Where ``memory`` comes from, in words."""


@dataclass(frozen=True)
class Room:
    """What the pool of a box has."""

    memory: int
    """Bytes of all its engines together."""
    lodgers: tuple[Lodger, ...]
    lines: tuple[str, ...]


def lodgers_on(fleet: Fleet, layout: str, box: str, measured: Mapping[str, int]) -> list[Lodger]:
    """Models of the pool of a layout that a box can load, in the order of the file.

    ``measured`` has sizes of weights, used where weights_size is not given.
    """
    found = []
    for name, placement in fleet.layouts[layout].items():
        if placement.pool is None or box not in placement.pool:
            continue
        size = fleet.models[name].weights_size
        weights = size if size is not None else measured.get(name)
        if placement.memory is not None:
            memory, told = placement.memory, gib(placement.memory)
        else:
            memory = (weights or 0) + BESIDE_WEIGHTS
            known = "weights not known" if weights is None else f"weights {gib(weights)}"
            told = f"{known} + {gib(BESIDE_WEIGHTS)} = {gib(memory)}"
        found.append(Lodger(name, memory, placement.pin, told))
    return found


def pool_room(box: str, where: str, memory: int, lodgers: Sequence[Lodger]) -> Room:
    """What the pool of a box makes of ``memory`` bytes. Raises RefusedError, with the sum, for what does not fit.

    ``where`` names box and layout.
    """
    lines = [f"pool: {gib(memory)} for its engines together"]
    pinned = [lodger for lodger in lodgers if lodger.pinned]
    taken = sum(lodger.memory for lodger in pinned)
    lines += [f"{lodger.model}: pinned, {lodger.told}" for lodger in pinned]
    left = memory - taken
    if pinned:
        lines.append(f"pinned engines take {gib(taken)}: {_rest(left)}")
    if left < 0:
        raise RefusedError(
            f"{where}: the pinned engines do not fit together, {gib(-left)} missing: {'; '.join(lines)}",
            hint=f"take pin: from one of {', '.join(lodger.model for lodger in pinned)}, lower its memory:, or take "
            f"{box} out of pool:",
        )
    for lodger in (one for one in lodgers if not one.pinned):
        beside = left - lodger.memory
        lines.append(f"{lodger.model}: {lodger.told} when it is asked for: {_rest(beside)}")
        if beside < 0:
            pins = " beside the pinned ones" if pinned else ""
            raise RefusedError(
                f"{where}: {lodger.model} does not fit{pins}, {gib(-beside)} missing: {'; '.join(lines)}",
                hint=f"lower memory: of {lodger.model}{', take pin: from another model' if pinned else ''}, or take "
                f"{box} out of its pool:",
            )
    lines += _at_once(left, [lodger for lodger in lodgers if not lodger.pinned])
    return Room(memory, tuple(lodgers), tuple(lines))


def _at_once(left: int, lodgers: Sequence[Lodger]) -> list[str]:
    """How many models that are not pinned ``left`` bytes hold beside each other; nothing of fewer than two."""
    if len(lodgers) < 2:
        return []
    total = sum(lodger.memory for lodger in lodgers)
    if total <= left:
        return [f"all {len(lodgers)} that are not pinned fit at once: {_rest(left - total)}"]
    largest = sorted(lodgers, key=lambda lodger: -lodger.memory)
    least, most = _fitting(left, largest), _fitting(left, largest[::-1])
    many = f"{least} of them fit{'s' if least == 1 else ''}" if least == most else f"{least} to {most} of them fit"
    names = ", ".join(lodger.model for lodger in largest[:least])
    of = f"the {least} largest" if least > 1 else "the largest"
    return [f"{len(lodgers)} are not pinned, {gib(total)} together: {many} at once, {of}: {names}"]


def _fitting(left: int, lodgers: Sequence[Lodger]) -> int:
    """How many of these, taken in their order, fit."""
    count = 0
    for lodger in lodgers:
        left -= lodger.memory
        if left < 0:
            break
        count += 1
    return count


def _rest(left: int) -> str:
    return f"{gib(left)} left" if left >= 0 else f"{gib(-left)} missing"
