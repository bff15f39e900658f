"""Family *units*, put together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fleetctl.doctor.finding import Finding
from fleetctl.doctor.scene import Family, Scene
from fleetctl.doctor.settled import cut_off, engine_units, our_units, ports_of, settled
from fleetctl.doctor.units.faring import faring
from fleetctl.doctor.units.files import files
from fleetctl.doctor.units.foreign import foreign
from fleetctl.doctor.units.kinds import CUT_OFF, KINDS
from fleetctl.doctor.units.ours import at_boot, generation, running, superseded
from fleetctl.doctor.units.told import UnitsTold
from fleetctl.facts.operations import with_article
from fleetctl.facts.types import MoveFacts


def ask(scene: Scene, box: str) -> dict[str, Any]:
    """What a box is to look at. Of files with secrets no diff is asked for."""
    facts = scene.observed[box]
    secret = {file.path for file in scene.live.files.get(box, ()) if file.secrets}
    ports: set[int] = set()
    for release in (*scene.releases, scene.live):
        ports |= set(ports_of(release, box))
    return {
        "units": our_units(scene, box),
        "engines": engine_units(scene, box),
        "superseded": sorted({*scene.live.superseded.get(box, ()), *facts.superseded}),
        "ports": sorted(ports),
        "diffs": [path for path in facts.drift if path not in secret],
    }


def find(scene: Scene, told: Mapping[str, UnitsTold]) -> Iterator[Finding]:
    """Findings of all boxes; none while a move is under way. After one that was cut off: it, and what others have."""
    interrupted = cut_off(scene)
    if interrupted is not None:
        yield _cut_off(*interrupted)
    view = settled(scene)
    if view is None:
        return
    for box in scene.observed:
        more = told.get(box)
        if interrupted is not None:
            yield from foreign(view, box, more) if more is not None else ()
            continue
        yield from at_boot(view, box)
        yield from running(view, box, more)
        yield from superseded(view, box, more)
        yield from generation(view, box)
        if more is not None:
            yield from faring(view, box, more)
            yield from files(view, box, more)
            yield from foreign(view, box, more)


def _cut_off(box: str, move: MoveFacts) -> Finding:
    return CUT_OFF.found(
        box,
        move.move,
        f"{with_article(move.operation)} by {move.who} was cut off",
        f"{box}:/var/lib/fleetctl/moves/{move.move}: {f'{move.operation} {move.road}'.strip()}, without an end",
        fix=move.ways,
    )


UNITS = Family("units", KINDS, find, UnitsTold, "examine_units", ask)
