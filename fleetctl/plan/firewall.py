"""What the firewall of a box lacks, and what is to be known to put it there: pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from fleetctl.facts.types import BoxFacts
from fleetctl.render.firewall import FIREWALL_PATHS, mark_of
from fleetctl.render.names import FIREWALL_UNIT
from fleetctl.render.release import Release

Work = Literal["", "apply", "remove"]


def work_on(facts: BoxFacts, box: str, target: Release, install: Iterable[str], remove: Iterable[str]) -> Work:
    """What has to be done about the firewall of a box, whose files to be installed and removed are given."""
    if guards(target, box):
        if set(install) & set(FIREWALL_PATHS) or not loaded_as_wanted(facts, box, target):
            return "apply"
        unit = facts.units.get(FIREWALL_UNIT)
        return "" if unit is not None and unit.active == "active" else "apply"
    if set(remove) & set(FIREWALL_PATHS) or (facts.firewall is not None and facts.firewall.mark):
        return "remove"
    return ""


def guards(release: Release, box: str) -> bool:
    """The release has a firewall on this box."""
    return release.firewall is not None and box in release.firewall.guarded


def loaded_as_wanted(facts: BoxFacts, box: str, release: Release) -> bool:
    """The table of the release is the one that is loaded on a box, to stay, and nobody has changed it there."""
    seen = facts.firewall
    mark = mark_of(release.files.get(box, ()))
    return seen is not None and seen.intact and not seen.tried and seen.mark == mark


def who_is_shut_out(source: Release, target: Release) -> Iterable[str]:
    """What an operator should know before there is a firewall for the first time."""
    if source.firewall is not None or target.firewall is None:
        return
    others = f" and {', '.join(target.firewall.allow)}" if target.firewall.allow else ""
    yield f"the ports of engines answer the boxes of the fleet{others} alone from now on: all others use the proxy"


def is_foreign(facts: BoxFacts, box: str) -> bool:
    """A table of that name is loaded which is neither fleetctl's nor was when it was put there."""
    known = facts.release is not None and guards(facts.release, box)
    return facts.firewall is not None and facts.firewall.loaded and not facts.firewall.mark and not known


def problems(facts: BoxFacts, box: str, release: Release) -> Iterable[str]:
    """What is wrong with the firewall of a box that should be in a release, one sentence each."""
    seen = facts.firewall
    if not guards(release, box):
        if seen is not None and seen.mark:
            yield f"{box}: a firewall of fleetctl is loaded (table inet fleetctl), which this layout does not have"
        return
    unit = facts.units.get(FIREWALL_UNIT)
    if seen is None or not seen.loaded:
        yield f"{box}: the firewall is not loaded: engines answer everybody (`fleetctl apply` loads it)"
    elif not loaded_as_wanted(facts, box, release):
        yield f"{box}: the firewall that is loaded (table inet fleetctl) is not the one of this layout, or was edited"
    elif unit is None or unit.active != "active":
        yield f"{box}: {FIREWALL_UNIT} is not active: the next flush of the ruleset takes the firewall away for good"


def apart(paths: Iterable[str]) -> list[str]:
    """The paths without those of the firewall, which steps of its own install and remove."""
    return [path for path in paths if path not in FIREWALL_PATHS]


def to_apply(source: Release, target: Release, box: str) -> dict[str, Any]:
    """Parameters of the step that loads the firewall of a box: its files, who may call, and what has to be reached."""
    assert target.firewall is not None
    engines = {
        (engine.address, engine.port)
        for release in (source, target)
        for engine in release.engines
        if engine.head.box == box
    }
    return {
        "install": list(FIREWALL_PATHS),
        "callers": sorted({name for release in (source, target) if release.proxy for name in release.proxy.boxes}),
        "engines": [list(one) for one in sorted(engines)],
        "allowed": [*target.firewall.fleet, *target.firewall.allow],
    }
