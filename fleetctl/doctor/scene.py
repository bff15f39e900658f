"""What the families judge: the file, what is live, what the boxes say. Each family may ask the boxes for more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fleetctl.doctor.finding import Finding, Kind
from fleetctl.errors import FleetError
from fleetctl.facts.types import Observed, Seen
from fleetctl.render.release import Release
from fleetctl.spec.fleet import Fleet

Told = TypeVar("Told", bound=Seen)


@dataclass(frozen=True)
class Scene:
    """The fleet as a doctor sees it.

    ``releases`` are those of every layout of the file as they would be rendered now, ``live`` the one that the boxes
    keep (without engines where there is none). ``observed`` has the boxes that answered, ``away`` the others.
    """

    fleet: Fleet
    releases: tuple[Release, ...]
    live: Release
    observed: Observed
    away: Mapping[str, FleetError]


@dataclass(frozen=True)
class Family(Generic[Told]):
    """One family of findings.

    ``op`` is asked of each box with the arguments that ``ask`` gives for it (None: of this box nothing), all families
    at once; ``find`` judges what the boxes told (those that could not tell are missing). ``told`` is the type of an
    answer; it may have the fields ``asked`` and ``answered``, when that was by the clock of the operator's machine. A
    family without an ``op`` finds everything in the scene.
    """

    name: str
    kinds: tuple[Kind, ...]
    find: Callable[[Scene, Mapping[str, Told]], Iterator[Finding]]
    told: type[Told]
    op: str | None = None
    ask: Callable[[Scene, str], dict[str, Any] | None] = lambda scene, box: {}
