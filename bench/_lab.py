"""What the scripts with lab boxes share: the base system, the boxes in fleet.yaml, and how a run ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _common import BenchError, Figure, print_figures, say, workspace

from fleetctl.errors import FleetError
from fleetctl.lab.lab import DEFAULT_ROOT

if TYPE_CHECKING:
    from fleetctl.lab.state import LabBox


def base_cache() -> Path | None:
    """A base system for boxes that another lab of this machine has built; None: the lab builds its own."""
    known = [Path("/var/cache/fleetctl-lab/base"), DEFAULT_ROOT / "base"]
    if named := os.environ.get("FLEETCTL_LAB_BASE"):
        known.insert(0, Path(named))
    return next((base for base in known if base.is_dir()), None)


def boxes_of(boxes: Sequence[LabBox], memory: str, reserve: str) -> dict[str, dict[str, Any]]:
    """``boxes:`` of a fleet.yaml for lab boxes."""
    return {
        box.name: {
            "address": box.address,
            "link": box.link_address,
            "interface": "host0",
            "memory": memory,
            "reserve": reserve,
            "ssh": {"user": box.user, "key": str(box.key), "known_hosts": str(box.known_hosts)},
        }
        for box in boxes
    }


def measured(bench: str, folder: Path, clean: Callable[[], None], measure: Callable[[], Mapping[str, Figure]]) -> int:
    """Measure in a folder of its own and print the figures; the exit status of the script."""
    try:
        with workspace(folder, clean):
            figures = measure()
    except (BenchError, FleetError) as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; the boxes are gone")
        return 130
    print_figures(bench, figures)
    return 0
