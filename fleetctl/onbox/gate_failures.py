"""What was asked and answered when a gate failed: kept with the journal of the move, for root alone."""

import os
import re
from typing import Any, Dict, List

from fleetctl.onbox.kept import MOVES, read_object
from fleetctl.onbox.lock import require_claim
from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.redacted import hidden
from fleetctl.onbox.state import write_json

LONGEST_NAME = 200  # characters; a gate is called like its file, which may have a longer path
MOST_SHOWN = 4 * 1024 * 1024  # characters of texts that are read at one time


def _folder(move: str) -> str:
    return "%s/%s/gates" % (MOVES, move)


@op("gate_keep")
def gate_keep(call: Call, move: str, failure: Dict[str, Any]) -> Dict[str, str]:
    """Keep a failure: `engine`, `gate`, `why` and `exchanges`, without what looks like a secret. Tells the ``path``.

    A gate of an engine that fails again in the same move takes the place of the first.
    """
    require_claim()
    if not os.path.isdir("%s/%s" % (MOVES, move)):
        raise OpError("there is no journal of move %s" % move)
    name = re.sub(r"[^A-Za-z0-9@._-]+", "-", "%s-%s" % (failure["engine"], failure["gate"]))[:LONGEST_NAME]
    path = "%s/%s.json" % (_folder(move), name)
    write_json(call, path, _cleaned(failure))
    return {"path": path}


def _cleaned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _cleaned(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_cleaned(one) for one in value]
    return "\n".join(hidden(line) for line in value.split("\n")) if isinstance(value, str) else value


@op("gate_failures")
def gate_failures(call: Call, move: str) -> List[Dict[str, Any]]:
    """What is kept of the gates that failed in a move, each with its ``path``; damaged files are left out.

    Of what is more than MOST_SHOWN in all, the exchanges stay away.
    """
    folder = _folder(move)
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    except OSError:
        return []
    found = []  # type: List[Dict[str, Any]]
    room = MOST_SHOWN
    for name in names:
        path = "%s/%s" % (folder, name)
        try:
            room -= os.path.getsize(path)
            failure = read_object(path, "") or {}
        except (OSError, OpError):
            continue
        if {"engine", "gate", "why", "exchanges"} <= set(failure):
            found.append(dict(failure, path=path, exchanges=failure["exchanges"] if room >= 0 else []))
    return sorted(found, key=_at)


def _at(failure: Dict[str, Any]) -> float:
    at = failure.get("at")
    return float(at) if isinstance(at, (int, float)) else 0.0
