"""What the guard of this box (fleetctl/guard) says of itself, and what it has written down."""

import json
import time
from typing import Any, Dict, List, Optional

from fleetctl.onbox.kept import VAR, generation_meta, pointed_at
from fleetctl.onbox.lock import GUARD_STATUS
from fleetctl.onbox.main import Call, op
from fleetctl.onbox.units import states

UNIT = "fleetctl-guard.service"
FOLDER = VAR + "/guard"
SCRIPTS = "/etc/fleetctl/bin/"  # what only engines have
STALE = 10.0  # seconds for which the guard's word counts


@op("guard_status")
def guard_status(call: Call, daemons: List[str], events: int) -> Dict[str, Any]:
    """State of the guard's unit, its ``status`` of the last second, and the last ``events`` that it wrote down.

    ``daemons`` are units that also act when memory runs short: ``others`` has those that are up. ``status`` is None
    when no guard runs, ``engine`` says whether the current layout has one here. ``lowest`` and ``pressure`` are the
    worst of the minutes that are written down (bytes, percent).
    """
    found = states(call, [UNIT, *daemons])
    told = records("events")
    minutes = records("minutes")
    current = pointed_at()
    meta = generation_meta(current) if current is not None else None
    pressures = [minute["pressure"] for minute in minutes if minute.get("pressure") is not None]
    return {
        "unit": {key: found[UNIT][key] for key in ("load", "active", "enabled", "restarts")},
        "others": [unit for unit in daemons if found[unit]["active"] in ("active", "activating", "reloading")],
        "status": _status(),
        "events": told[-events:] if events else [],
        "lowest": min((minute["available"] for minute in minutes if "available" in minute), default=None),
        "pressure": max(pressures, default=None),
        "minutes": len(minutes),
        "engine": meta is not None and any(path.startswith(SCRIPTS) for path in meta["paths"]),
    }


def out() -> Dict[str, str]:
    """Unit of each engine that the guard has out of the proxy now → why."""
    told = _status() or {}
    return {str(engine["unit"]): str(engine["out"]) for engine in told.get("engines", ()) if engine["out"]}


def _status() -> Optional[Dict[str, Any]]:
    try:
        with open(GUARD_STATUS, encoding="utf-8") as source:
            told = dict(json.load(source))
        return told if time.time() - told["at"] < STALE else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def records(name: str) -> List[Dict[str, Any]]:
    """Records of a file and of the one before it, oldest first; a line that was cut off says nothing."""
    found = []
    for path in ("%s/%s.1.jsonl" % (FOLDER, name), "%s/%s.jsonl" % (FOLDER, name)):
        try:
            with open(path, encoding="utf-8", errors="replace") as source:
                lines = source.read().splitlines()
        except OSError:
            continue
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                found.append(record)
    return found
