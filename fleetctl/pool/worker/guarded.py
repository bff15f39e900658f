"""What the guard of the box (fleetctl/guard) lets a worker load: its word of the last second, in a file.

No guard, no limit: a word that is older than :data:`FRESH` seconds says nothing, as the proxy has it too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fleetctl.pool.residency import Reach

STATUS = Path("/run/fleetctl-guard/status.json")
FRESH = 10.0


@dataclass(frozen=True)
class Said:
    """``hold``: why nothing may be loaded. ``memory``: bytes that all engines may take together, None: what fleet.yaml
    says. ``reach``: what may go for it. ``out``: unit → why it stays out."""

    hold: str = ""
    memory: int | None = None
    reach: Reach = ""
    out: Mapping[str, str] = field(default_factory=dict)


def said(path: Path) -> Said:
    """The guard's word; of one that is not there, or of a damaged file, nothing."""
    try:
        told = json.loads(path.read_bytes())
        pool = told.get("pool")
        if pool is None or time.time() - float(told["at"]) > FRESH:
            return Said()
        memory, reach = pool["memory"], pool["reach"]
        out = {str(unit): str(why) for unit, why in pool["out"].items()}
        return Said(
            str(pool["hold"]),
            None if memory is None else int(memory),
            reach if reach in ("idle", "unpinned", "pinned") else "",
            out,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Said()
