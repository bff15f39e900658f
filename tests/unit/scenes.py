"""The office as a doctor sees it."""

from __future__ import annotations

from typing import Any

from planned import boxes_in, layout, office

from fleetctl.doctor.scene import Scene
from fleetctl.render.layout import render_layout
from fleetctl.render.release import Release


def scene(
    live: Release | None = None, facts: dict[str, dict[str, Any]] | None = None, file: dict[str, Any] | None = None
) -> Scene:
    """The office in a layout (replicas, as ``file`` changes it, if nothing is said); ``facts`` of boxes may differ."""
    fleet = office(**(file or {}))
    release = live or layout("replicas", **(file or {}))
    releases = tuple(render_layout(fleet, name) for name in fleet.layouts)
    return Scene(fleet, releases, release, boxes_in(release, **(facts or {})), {})
