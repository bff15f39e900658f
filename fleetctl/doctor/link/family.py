"""The family *link*: the direct link between the boxes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fleetctl.doctor.finding import Finding
from fleetctl.doctor.link.between import between
from fleetctl.doctor.link.box import of_box
from fleetctl.doctor.link.engines import of_engines
from fleetctl.doctor.link.kinds import KINDS
from fleetctl.doctor.link.told import LinkTold
from fleetctl.doctor.scene import Family, Scene
from fleetctl.spec.fleet import Fleet


def links(fleet: Fleet) -> dict[str, str]:
    """Box → its link address, of the boxes that have a link or a part of a split. Empty: nothing runs over a link."""
    split = {
        box
        for models in fleet.layouts.values()
        for placement in models.values()
        if placement.split is not None
        for box in placement.split
    }
    found = {
        name: box.link or box.address for name, box in fleet.boxes.items() if box.link is not None or name in split
    }
    return found if len(found) > 1 else {}


def ask(scene: Scene, box: str) -> dict[str, Any] | None:
    """The question for one box; None where it has no link."""
    known = links(scene.fleet)
    if box not in known:
        return None
    units = sorted({rank.unit for engine, rank in scene.live.ranks_on(box) if engine.kind == "split"})
    return {
        "own": known[box],
        "peers": {other: address for other, address in known.items() if other != box},
        "ports": {other: ports for other in known if other != box and (ports := _meeting_ports(scene, box, other))},
        "units": units,
    }


def _meeting_ports(scene: Scene, box: str, head: str) -> list[int]:
    """Ports where ranks on a box meet their head, and on which nobody listens now: to knock there disturbs none."""
    if head not in scene.observed:
        return []
    taken = scene.observed[head].ports
    ports: set[int] = set()
    for release in scene.releases:
        for engine in release.engines:
            if engine.kind == "split" and engine.head.box == head and any(rank.box == box for rank in engine.ranks):
                ports |= set(engine.listens) - {engine.port}
    return sorted(port for port in ports if port not in taken)


def find(scene: Scene, told: Mapping[str, LinkTold]) -> Iterator[Finding]:
    """Findings of the family."""
    for box, one in told.items():
        yield from of_box(scene.fleet, box, one)
        yield from of_engines(scene.fleet, box, one)
    yield from between(scene.fleet, told)


LINK = Family(name="link", kinds=KINDS, find=find, told=LinkTold, op="examine_link", ask=ask)
