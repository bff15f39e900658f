"""What doctor asks of a box about units: how ours are set up and fared, and what else acts on them. Changes nothing."""

import difflib
import os
from typing import Any, Dict, List

from fleetctl.onbox.acting import Target, small_text
from fleetctl.onbox.kept import current_generation, generation_folder
from fleetctl.onbox.main import Call, op
from fleetctl.onbox.redacted import all_redacted, redacted
from fleetctl.onbox.restarts import restarts_of
from fleetctl.onbox.superseded import relations
from fleetctl.onbox.supervisors import containers, cron_entries, foreign_units, triggers_of, user_units
from fleetctl.onbox.unitfiles import directives
from fleetctl.onbox.units import show, states

DIFF_LINES = 12
KEYS = "Type,Restart,StartLimitBurst,StartLimitIntervalUSec,ActiveEnterTimestampMonotonic"


@op("examine_units")
def examine_units(
    call: Call, units: List[str], engines: List[str], superseded: List[str], ports: List[int], diffs: List[str]
) -> Dict[str, Any]:
    """Details of our ``units``, of which ``engines`` are engines of any layout, and what acts on them or is an engine.

    ``superseded`` are foreign units that have to stay away, ``ports`` those of the engines. ``diffs`` are files without
    secrets, of which a changed one is compared line by line with the generation.
    """
    present = [unit for unit, state in states(call, units).items() if state["load"] != "not-found"]
    names = [unit[: -len(".service")] for unit in engines]
    target = Target(sorted({*units, *engines, *superseded}), names, ports)
    details = relations(call, present, KEYS) if present else {}
    return {
        "units": {
            unit: {
                "type": "".join(details[unit].get("Type", [])),
                "restart": "".join(details[unit].get("Restart", [])),
                "burst": int("".join(details[unit].get("StartLimitBurst", [])) or 0),
                "interval": "".join(details[unit].get("StartLimitIntervalUSec", [])),
                "log": restarts_of(call, unit) if unit in engines else None,
            }
            for unit in present
        },
        "drop_ins": _drop_ins(call, present),
        "foreign": foreign_units(call, target, [*units, *engines, *superseded]),
        "replaced": _replaced(call, superseded),
        "cron": cron_entries(target),
        "user": user_units(target),
        "containers": containers(call, target),
        "diffs": {path: diff(path) for path in diffs},
    }


def _drop_ins(call: Call, units: List[str]) -> List[Dict[str, Any]]:
    """Every drop-in of the units: its file, and its lines as KEY=VALUE. Values that may be secret are left out."""
    found = []
    for unit, properties in show(call, units).items():
        for path in properties.get("DropInPaths", "").split():
            pairs = list(directives(small_text(path)))
            lines = [_setting(key, value) for key, value in pairs]
            found.append({"unit": unit, "path": path, "keys": [key for key, _ in pairs], "lines": lines[:20]})
    return found


def _setting(key: str, value: str) -> str:
    if key.startswith(("Environment", "SetCredential", "PassEnvironment")):
        return "%s=%s=…" % (key, value.strip("\"'").split("=", 1)[0]) if "=" in value else "%s=…" % key
    return redacted("%s=%s" % (key, value))


def _replaced(call: Call, units: List[str]) -> Dict[str, Dict[str, Any]]:
    """What starts each unit, and where its file really lies: it may only be linked into systemd's folders."""
    triggers = triggers_of(call, units)
    return {
        unit: {
            "triggers": triggers[unit],
            "file": "".join(os.path.realpath(path) for path in told.get("FragmentPath", [])[:1]),
        }
        for unit, told in relations(call, units, "FragmentPath").items()
    }


def diff(path: str) -> List[str]:
    """How a live file differs from the one of the current generation, as a short unified diff without secrets.

    A file that only root may read is not shown, nor one that is missing or no text.
    """
    number = current_generation()
    kept = "" if number is None else generation_folder(number) + "/files" + path
    if not kept or not os.path.isfile(kept):
        return []
    if not os.path.isfile(path):
        return ["it is missing"]
    one, other = os.stat(kept), os.stat(path)
    found = []
    if one.st_mode != other.st_mode:
        found.append("its mode is %04o, it should be %04o" % (other.st_mode & 0o7777, one.st_mode & 0o7777))
    if not one.st_mode & 0o044:
        return found
    lines = difflib.unified_diff(
        small_text(kept).splitlines(), small_text(path).splitlines(), "generation", path, lineterm="", n=0
    )
    return found + all_redacted((line for line in lines if not line.startswith("@@")), DIFF_LINES)
