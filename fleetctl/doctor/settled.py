"""The fleet held against its live layout, for the families that judge units and processes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fleetctl.doctor.scene import Scene
from fleetctl.facts.assess import seen_part
from fleetctl.facts.operations import GUARDED
from fleetctl.facts.types import BoxFacts, MoveFacts, lead_of, unfinished
from fleetctl.plan.difference import BoxDifference, Difference, compare, engine_name
from fleetctl.render.names import FIREWALL_UNIT, GUARD_UNIT, TRIAL_UNIT, UNIT_FOLDER
from fleetctl.render.release import Engine, Rank, Release


@dataclass(frozen=True)
class Settled:
    """The part of the live layout whose boxes answered, and what separates the boxes from it.

    ``unseen`` are units of engines of which a box was not seen: nothing is said of them.
    """

    scene: Scene
    part: Release
    difference: Difference
    unseen: frozenset[str]

    @property
    def generation(self) -> int | None:
        """The generation that the fleet is in: that of the box which keeps the journal."""
        observed = self.scene.observed
        lead = lead_of(observed, self.scene.fleet.proxy.lead)
        return (observed.get(lead) or max(observed.values(), key=lambda facts: facts.generation or 0)).generation

    def facts(self, box: str) -> BoxFacts:
        """What the box told."""
        return self.scene.observed[box]

    def lacks(self, box: str) -> BoxDifference:
        """What separates one box from the layout."""
        return self.difference.boxes[box]

    def ranks(self, box: str) -> dict[str, tuple[Engine, Rank]]:
        """Unit → engine and rank that the live layout has on a box, of the engines that can be judged."""
        return {rank.unit: (engine, rank) for engine, rank in self.part.ranks_on(box)}

    def build(self, engine: Engine, rank: Rank) -> str:
        """FLEETCTL_ENGINE of the processes of a rank as it should run."""
        return engine_name(engine, rank, self.part.layout)


def under_way(scene: Scene) -> MoveFacts | None:
    """The move that somebody is carrying out now, and that changes what is judged."""
    found = unfinished(scene.observed)
    if found is None or found[1].operation in GUARDED:
        return None
    return found[1] if held(scene.observed[found[0]]) else None


def cut_off(scene: Scene) -> tuple[str, MoveFacts] | None:
    """The move that nobody carries on, and the box with its journal. What it left half done is its own matter."""
    found = unfinished(scene.observed)
    return found if found is not None and not held(scene.observed[found[0]]) else None


def held(facts: BoxFacts) -> bool:
    """Somebody has the lock that this box keeps, and lets himself be heard."""
    return facts.lock is not None and facts.lock.alive


def settled(scene: Scene) -> Settled | None:
    """None while a move is under way, which changes all of this, and where the layout uses boxes that nobody knows."""
    if under_way(scene) is not None:
        return None
    if set(scene.live.boxes()) - set(scene.observed) - set(scene.away):
        return None
    part, unseen = seen_part(scene.live, scene.observed)
    return Settled(
        scene,
        part,
        compare(part, part, scene.observed, None),
        frozenset(rank.unit for engine in unseen for rank in engine.ranks),
    )


def engine_units(scene: Scene, box: str) -> list[str]:
    """Units of the engines that any layout of the file, or the live one, has on a box."""
    releases = [*scene.releases, scene.live]
    ranks = [one for release in releases for one in (*release.ranks_on(box), *release.lodgers_on(box))]
    return sorted({rank.unit for _, rank in ranks})


def our_units(scene: Scene, box: str) -> list[str]:
    """All units of fleetctl on a box: those in its generations, and those that a layout would put there."""
    facts = scene.observed[box]
    services = {GUARD_UNIT, FIREWALL_UNIT, TRIAL_UNIT}
    services |= {one.unit for release in (*scene.releases, scene.live) if release.pool for one in release.pool.on(box)}
    for proxy in (release.proxy for release in (*scene.releases, scene.live)):
        services |= {proxy.unit, proxy.vrrp_unit} if proxy else set()
    return sorted({*facts.ours, *engine_units(scene, box), *services})


def ports_of(release: Release, box: str) -> dict[int, str]:
    """Ports that a layout listens on, on one box, and what each is for."""
    found: dict[int, str] = {}
    for engine, rank in release.ranks_on(box):
        found |= engine.listens if rank.rank == 0 else {}
    return found


def conflicts(scene: Scene, box: str, unit: str) -> set[str]:
    """Units that a unit's own file on a box says it cannot run beside."""
    for release in (scene.live, *scene.releases):
        for file in release.files.get(box, ()):
            if file.path == f"{UNIT_FOLDER}/{unit}":
                return {name for line in re.findall(r"^Conflicts=(.*)$", file.content, re.M) for name in line.split()}
    return set()
