"""The steps of a move on the firewalls of the boxes. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fleetctl.plan.draft import Draft, Move, on_box
from fleetctl.plan.firewall import to_apply
from fleetctl.render.firewall import FIREWALL_PATHS
from fleetctl.spec.units import parse_duration


def apply_firewall(move: Move, limit: Any = 30.0) -> Iterable[Draft]:
    """The table of the release is loaded where it is not; ``limit`` is how long a box waits before it takes it back."""
    for name, box in move.difference.boxes.items():
        if box.firewall == "apply":
            yield on_box(
                name,
                f"only the fleet and firewall.allow reach the engines' ports on {name} (taken back if SSH is lost)",
                generation=move.generation,
                limit=parse_duration(limit),
                **to_apply(move.source, move.target, name),
            )


def remove_firewall(move: Move) -> Iterable[Draft]:
    """The table goes where the release has none."""
    for name, box in move.difference.boxes.items():
        if box.firewall == "remove":
            yield on_box(name, f"remove the firewall of {name}", remove=list(FIREWALL_PATHS))
