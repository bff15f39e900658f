"""The memory of one box, divided among the engines of a layout. Pure; all sizes are bytes.

The share that engines get (``gpu_memory_utilization``) is (memory - reserve) / memory, rounded down to whole
hundredths: the reserve is never less than what fleet.yaml says. Shares are kept as hundredths, so that sums are exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleetctl.capacity.pool import Room, lodgers_on, pool_room
from fleetctl.errors import RefusedError
from fleetctl.spec.fleet import Fleet
from fleetctl.spec.units import gib


@dataclass(frozen=True)
class Demand:
    """What one engine wants on one box."""

    model: str
    weights: int | None
    """Weights of the whole model; None: not known."""
    ranks: int = 1
    """Boxes over which the weights are divided evenly."""
    fixed: float | None = None
    """gpu_memory_utilization that the file asks for on this box."""
    cache: int | None = None
    """Bytes that the file gives to its cache here, whatever the share leaves."""

    @property
    def here(self) -> int | None:
        """Weights that this box holds, rounded up."""
        return None if self.weights is None else -(-self.weights // self.ranks)


@dataclass(frozen=True)
class BoxBudget:
    """How a layout divides the memory of one box."""

    box: str
    memory: int
    reserve: int
    share: float
    """gpu_memory_utilization of all engines together."""
    weights: int | None
    """Weights this box holds; None: not known for every engine."""
    shares: Mapping[str, float]
    """gpu_memory_utilization of each model's engine."""
    lines: tuple[str, ...]
    pool: Room | None = None
    """What is left for the pool; None: the box is in none."""


def demands_on(fleet: Fleet, layout: str, box: str, measured: Mapping[str, int]) -> list[Demand]:
    """Engines of a layout on a box that are always there, in the order of the file: those of a pool are not.

    ``measured`` is used where weights_size is not given.
    """
    demands = []
    for name, placement in fleet.layouts[layout].items():
        if placement.pool is None and box in placement.boxes:
            size = fleet.models[name].weights_size
            weights = size if size is not None else measured.get(name)
            ranks = 1 if placement.split is None else len(placement.split)
            seat = placement.boxes[box]
            demands.append(Demand(name, weights, ranks, seat.gpu_memory_utilization, seat.kv_cache_memory))
    return demands


def usable_share(fleet: Fleet, box: str) -> int:
    """Hundredths of a box's memory that engines may have, rounded down."""
    memory, reserve = fleet.boxes[box].memory, fleet.boxes[box].reserve
    return (memory - reserve) * 100 // memory if memory else 0


def box_budget(fleet: Fleet, layout: str, box: str, measured: Mapping[str, int]) -> BoxBudget:
    """Divide the memory of a box. Raises RefusedError, with the whole sum, when an engine does not fit."""
    memory, reserve = fleet.boxes[box].memory, fleet.boxes[box].reserve
    demands = demands_on(fleet, layout, box, measured)
    where = f"{box}, layout {layout}"
    usable = memory - reserve
    lines = [f"memory {gib(memory)} - reserve {gib(reserve)} = {gib(usable)} for engines"]
    hundredths = usable_share(fleet, box)
    lodgers = lodgers_on(fleet, layout, box, measured)
    if hundredths < 1:
        models = ", ".join([*(demand.model for demand in demands), *(lodger.model for lodger in lodgers)])
        raise RefusedError(
            f"{where}: {lines[0]}: no memory is left for {models}",
            hint=f"lower reserve: of {box} in fleet.yaml, or take {box} out of layout {layout}",
        )
    whole = usable * 100 == hundredths * memory
    exactly = f"{hundredths / 100:.2f}" if whole else f"{usable / memory:.4f}, rounded down to {hundredths / 100:.2f}"
    if demands:
        lines.append(f"gpu_memory_utilization {exactly} = {gib(hundredths * memory / 100)}")
    parts = _divide(demands, hundredths, memory, where, lines)
    missing = {}
    for demand in demands:
        room = int(parts[demand.model] * memory / 100)
        lines.append(_line(demand, parts[demand.model], room))
        known = (demand.here or 0) + (demand.cache or 0)
        if known > room:
            missing[demand.model] = known - room
    if missing:
        short = ", ".join(f"{model} does not fit, {gib(size)} missing" for model, size in missing.items())
        raise RefusedError(
            f"{where}: {short}: {'; '.join(lines)}",
            hint=_hint(box, demands),
        )
    pool = None
    if lodgers:
        pool = pool_room(box, where, usable - int(sum(parts.values()) * memory / 100), lodgers)
        lines += pool.lines
    held = [demand.here for demand in demands]
    weighed = [size for size in held if size is not None]
    return BoxBudget(
        box=box,
        memory=memory,
        reserve=reserve,
        share=hundredths / 100,
        weights=sum(weighed) if len(weighed) == len(held) else None,
        shares={
            **{model: part / 100 for model, part in parts.items()},
            **{lodger.model: lodger.memory * 10_000 // memory / 10_000 for lodger in lodgers},
        },
        lines=tuple(lines),
        pool=pool,
    )


def _divide(
    demands: Sequence[Demand], hundredths: int, memory: int, where: str, lines: Sequence[str]
) -> dict[str, float]:
    """Hundredths of memory for each model: what the file fixes first, the rest by weights (evenly when unknown)."""
    fixed = {d.model: round(d.fixed * 100, 6) for d in demands if d.fixed is not None}
    taken = sum(fixed.values())
    free = [d for d in demands if d.fixed is None]
    if taken > hundredths or (free and taken > hundredths - len(free)):
        asked = " + ".join(f"{model} {part / 100:g}" for model, part in fixed.items())
        rest = f", and {', '.join(d.model for d in free)} needs a part of it too" if free else ""
        raise RefusedError(
            f"{where}: gpu_memory_utilization {asked} is more than the {hundredths / 100:.2f} there is"
            f" ({'; '.join(lines)}){rest}",
            hint="lower gpu_memory_utilization: of the placement, or reserve: of the box",
        )
    return fixed | _free_parts(free, int(hundredths - taken), memory)


def _free_parts(demands: Sequence[Demand], rest: int, memory: int) -> dict[str, float]:
    """Divide ``rest`` hundredths: to each what its weights need, and what remains in proportion to the weights.

    Where a weight is not known, all get the same. What rounding leaves goes to the largest remainders. Where not
    even the weights fit, the parts show it: one of them at least is smaller than its weights.
    """
    sizes = [demand.here or 0 for demand in demands]
    known = all(demand.here for demand in demands)
    needed = [-(-size * 100 // memory) if known else 0 for size in sizes]
    if sum(needed) > rest:
        needed = [0] * len(demands)
    spare, total = rest - sum(needed), sum(sizes) if known else len(demands)
    ideal = [spare * (size if known else 1) / total for size in sizes]
    parts = [least + int(more) for least, more in zip(needed, ideal, strict=True)]
    by_remainder = sorted(range(len(parts)), key=lambda place: int(ideal[place]) - ideal[place])
    for place in by_remainder[: rest - sum(parts)]:
        parts[place] += 1
    return {demand.model: part for demand, part in zip(demands, parts, strict=True)}


def _hint(box: str, demands: Sequence[Demand]) -> str:
    cache = "lower kv_cache_memory:, " if any(demand.cache is not None for demand in demands) else ""
    return f"{cache}lower reserve: of {box}, split the model over more boxes, or use a smaller build of it"


def _line(demand: Demand, part: float, room: int) -> str:
    """The sum of one engine; ``room`` is its part of the memory in bytes."""
    start = f"{demand.model}: {part / 100:.2f} of memory = {gib(room)}"
    cache = "" if demand.cache is None else f", {gib(demand.cache)} for its cache (kv_cache_memory)"
    start += cache
    if demand.here is None:
        return f"{start}; weights not known (weights_size: of the model is not set, nothing was measured)"
    held = f"weights {gib(demand.weights or 0)}"
    if demand.ranks > 1:
        held += f" / {demand.ranks} boxes = {gib(demand.here)}"
    left = room - demand.here - (demand.cache or 0)
    use = "the engine itself" if cache else "the KV cache and the engine itself"
    rest = f"{gib(left)} left for {use}" if left >= 0 else f"{gib(-left)} missing"
    return f"{start}, {held}: {rest}"
