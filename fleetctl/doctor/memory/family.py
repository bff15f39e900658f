"""The family *memory*."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fleetctl.doctor.finding import Finding
from fleetctl.doctor.memory import killed, shares, short, starting, swap, xid
from fleetctl.doctor.memory.told import MemoryTold
from fleetctl.doctor.scene import Family, Scene

_PARTS = (shares, starting, short, swap, killed, xid)


def ask(scene: Scene, box: str) -> dict[str, Any]:
    """What a box is asked: of its engines in the live layout, and of services that keep memory."""
    guard = scene.fleet.guard
    return {
        "engines": sorted({rank.unit for _, rank in scene.live.ranks_on(box)}),
        "units": sorted(guard.protects_on(box)) if guard is not None else [],
    }


def find(scene: Scene, seen: Mapping[str, MemoryTold]) -> Iterator[Finding]:
    """All findings about memory."""
    for box, told in seen.items():
        if box in scene.observed and box in scene.fleet.boxes:
            for part in _PARTS:
                yield from part.find(scene, box, told)


KINDS = tuple(sorted((kind for part in _PARTS for kind in part.KINDS), key=lambda kind: kind.code))

FAMILY = Family("memory", KINDS, find, MemoryTold, "examine_memory", ask)
