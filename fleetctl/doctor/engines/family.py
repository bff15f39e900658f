"""The family *engines*: what the engines of the live layout say of themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fleetctl.doctor.engines import kinds
from fleetctl.doctor.engines.kinds import KINDS
from fleetctl.doctor.engines.serving import serving
from fleetctl.doctor.engines.starting import starting
from fleetctl.doctor.engines.told import Case, EnginesTold, argument
from fleetctl.doctor.finding import Finding
from fleetctl.doctor.processes import taken_ports
from fleetctl.doctor.scene import Family, Scene
from fleetctl.doctor.settled import settled

# What is said once of an engine, whichever of its ranks told it first.
_ONCE = {kind.code for kind in (kinds.SKEW, kinds.PORT, kinds.SLOW_START, kinds.DEAD_LINK, kinds.LORA)}


def ask(scene: Scene, box: str) -> dict[str, Any] | None:
    """Units of a box, and where each answers requests; None: the live layout has none there."""
    units: dict[str, list[Any] | None] = {}
    for engine, rank in scene.live.ranks_on(box):
        units[rank.unit] = None
        if rank == engine.head and engine.task == "generate":
            parser = argument(scene.fleet, str(scene.live.layout), engine.model, box, "--tool-call-parser")
            units[rank.unit] = [engine.address, engine.port, engine.served_as[0], parser is not None]
    return {"units": units} if units else None


def find(scene: Scene, told: Mapping[str, EnginesTold]) -> Iterator[Finding]:
    """Findings of the family."""
    said: set[tuple[str, str]] = set()
    view = settled(scene)
    taken = {box: frozenset(taken_ports(view, box)) for box in scene.observed} if view is not None else {}
    for engine in scene.live.engines:
        for rank in engine.ranks:
            unit = told[rank.box].engines.get(rank.unit) if rank.box in told else None
            if unit is None or scene.live.layout is None:
                continue
            case = Case(scene.fleet, scene.live.layout, engine, rank, unit, taken.get(engine.head.box, frozenset()))
            for finding in (*starting(case, scene.observed), *serving(case)):
                if finding.code in _ONCE and (finding.code, engine.id) in said:
                    continue
                said.add((finding.code, engine.id))
                yield finding


ENGINES = Family(name="engines", kinds=KINDS, find=find, told=EnginesTold, op="examine_engines", ask=ask)
