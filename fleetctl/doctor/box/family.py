"""The family *box*."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fleetctl.doctor.box import clocks, machine, models, settings, versions
from fleetctl.doctor.box.told import BoxTold
from fleetctl.doctor.finding import Finding
from fleetctl.doctor.scene import Family, Scene


def folders_on(scene: Scene, box: str) -> list[str]:
    """Folders of models that some layout reads on a box."""
    found = {engine.weights for release in (scene.live, *scene.releases) for engine, _ in release.ranks_on(box)}
    return sorted(path for path in found if path.startswith("/"))


def ask(scene: Scene, box: str) -> dict[str, Any]:
    """What a box is asked: of the models, venvs and images of all layouts."""
    engines = [engine for release in (scene.live, *scene.releases) for engine, _ in release.ranks_on(box)]
    # An engine in a container keeps what it fetches in a place of its own.
    hub = {
        engine.weights: {"id": engine.weights, "revision": engine.revision or "", "env": engine.hub}
        for engine in engines
        if not engine.weights.startswith("/") and engine.image is None
    }
    return {
        "folders": folders_on(scene, box),
        "binaries": sorted({engine.binary for engine in engines if engine.binary}),
        "hub": list(hub.values()),
        "images": sorted({(engine.image[0], engine.image_reference) for engine in engines if engine.image}),
    }


def find(scene: Scene, seen: Mapping[str, BoxTold]) -> Iterator[Finding]:
    """All findings about boxes."""
    seen = {box: told for box, told in seen.items() if box in scene.observed and box in scene.fleet.boxes}
    yield from clocks.find(scene, seen)
    for box, told in seen.items():
        yield from machine.find(scene, box, told)
    yield from versions.find(scene, seen)
    yield from models.find(scene, seen)
    for box, told in seen.items():
        yield from settings.find(scene, box, told)


_KINDS = (*clocks.KINDS, *machine.KINDS, *versions.KINDS, *models.KINDS, *settings.KINDS)
KINDS = tuple(sorted(_KINDS, key=lambda kind: kind.code))

FAMILY = Family("box", KINDS, find, BoxTold, "examine_box", ask)
