"""What a command is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fleetctl.errors import FleetError
from fleetctl.remote.boxes import Boxes
from fleetctl.remote.connection import BoxConnection
from fleetctl.spec.fleet import Fleet


@dataclass(frozen=True)
class Subject:
    """The fleet that a command is about: its file, as values and as text, and the connected boxes.

    ``unreachable`` has the boxes that could not be connected, for a command that goes on without them; ``connect``
    tries one of them again, without asking anybody for a password. ``file`` is where the file lies; None: on a box.
    """

    fleet: Fleet
    text: str
    boxes: Boxes
    unreachable: Mapping[str, FleetError] = field(default_factory=dict)
    connect: Callable[[str], BoxConnection] | None = None
    file: Path | None = None
