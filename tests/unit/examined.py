"""A fleet as a doctor sees it: healthy in every respect, but for what a test changes."""

from __future__ import annotations

from typing import Any

from planned import boxes_in, layout, office

from fleetctl.doctor.scene import Scene
from fleetctl.facts.types import Lock, MoveFacts, Observed

NOW = 1_800_000_000.0


def scene(name: str = "replicas", changes: dict[str, Any] | None = None, **boxes: dict[str, Any]) -> Scene:
    """The office in a layout. ``changes`` are of fleet.yaml, ``a={…}`` and ``b={…}`` of the facts of a box."""
    changes = changes or {}
    live = layout(name, **changes)
    seen = boxes_in(live, 1, **boxes)
    fleet = office(**changes)
    return Scene(fleet, tuple(layout(one, **changes) for one in fleet.layouts), live, seen, {})


def changed(scene: Scene, box: str, **facts: Any) -> Scene:
    """The same scene with other facts of a box; ``units`` come on top of those that are there, also as ours."""
    before = scene.observed[box]
    if "units" in facts:
        units = facts["units"]
        foreign = facts.pop("foreign", ())
        facts["units"] = {**before.units, **units}
        facts["ours"] = (*before.ours, *(unit for unit in units if unit not in before.ours and unit not in foreign))
    observed: Observed = {**scene.observed, box: before.model_copy(update={"time": NOW, **facts})}
    return Scene(scene.fleet, scene.releases, scene.live, observed, scene.away)


def under_way(*, alive: bool) -> dict[str, Any]:
    """Facts of the lead box while a move goes on, or after it was cut off."""
    move = MoveFacts(
        move="m", end=None, operation="cutover", from_layout="split", to_layout="replicas", who="ann@x", started=0.0
    )
    lock = Lock(token="t", who="ann@x", host="x", pid=1, command="fleetctl cutover", age=1.0, silent=1.0)
    return {"moves": (move,), "lock": lock if alive else None}
