"""Every byte of the models' files held against the other boxes': ``fleetctl doctor --checksums``. It takes minutes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fleetctl.doctor.box.family import folders_on
from fleetctl.doctor.box.models import differ
from fleetctl.doctor.box.versions import together
from fleetctl.doctor.finding import Finding
from fleetctl.doctor.scene import Scene
from fleetctl.errors import FleetError
from fleetctl.remote.boxes import Boxes
from fleetctl.remote.connection import BoxConnection

Sums = Mapping[str, Mapping[str, str]]
"""Folder → file → SHA-256."""

LONGEST = 4 * 3600.0
"""Seconds; a model of a terabyte on a disk with 100 MB/s."""


def checksums(
    boxes: Boxes, scene: Scene, hear: Callable[[str, dict[str, Any]], None]
) -> tuple[dict[str, Sums], list[FleetError]]:
    """Checksums of all boxes that share a model with another, and what could not be read and why.

    ``hear`` is told of the progress of each box: ``bytes`` of ``total``, and the ``path``.
    """
    shared = {folder for group in together(scene) for folder in [group.engine.weights]}
    failed: list[FleetError] = []

    def one(box: BoxConnection) -> Sums | None:
        folders = [folder for folder in folders_on(scene, box.name) if folder in shared]
        if not folders or box.name not in scene.observed:
            return None
        try:
            told: Sums = box.call_with(
                "model_checksums",
                {"folders": folders},
                timeout=LONGEST,
                on_event=lambda event: hear(box.name, event),
            )
        except FleetError as error:
            failed.append(error)
            return None
        return told

    return {box: sums for box, sums in boxes.each(one).items() if sums is not None}, failed


def found_by(scene: Scene, sums: Mapping[str, Sums], known: list[Finding]) -> list[Finding]:
    """Findings for files whose bytes differ, but for folders of which it is known without their checksums."""
    told = {(finding.box, finding.where) for finding in known}
    found = []
    for group in together(scene):
        folder = group.engine.weights
        base, *others = [box for box in group.boxes if folder in sums.get(box, {})] or [""]
        for box in others:
            one, other = sums[base][folder], sums[box][folder]
            names = [name for name in sorted({*one} & {*other}) if one[name] != other[name]]
            if names and (box, folder) not in told:
                told.add((box, folder))
                lines = [f"{name}: {one[name][:16]}… on {base}, {other[name][:16]}… on {box}" for name in names]
                found.append(differ(scene, group, folder, (base, box), lines))
    return found
