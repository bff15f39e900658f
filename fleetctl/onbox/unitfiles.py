"""Unit files of others on this box: which there are, and what they do to units, containers and engines."""

import os
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from fleetctl.onbox.acting import Target, found_in, programs, small_text, starts_engine
from fleetctl.onbox.redacted import redacted
from fleetctl.onbox.superseded import UNIT_PATH

GENERATED = ("/run/systemd/transient", "/run/systemd/generator", "/run/systemd/generator.late")
EVERYWHERE = (*UNIT_PATH, *GENERATED)
KINDS = (".service", ".timer", ".path", ".socket", ".target")
# Directives with which a unit starts or stops those that it names.
RELATIONS = (
    "Conflicts",
    "Requires",
    "BindsTo",
    "Wants",
    "Upholds",
    "OnFailure",
    "OnSuccess",
    "PropagatesStopTo",
    "PropagatesReloadTo",
    "Unit",
    "Service",
)
MOST_ACTS = 50  # of one unit


def names_in(folder: str) -> List[str]:
    """Names in a folder, in order; none where there is no such folder."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def directives(text: str) -> Iterator[Tuple[str, str]]:
    """Key and value of every line of a unit file; a line that ends with a backslash goes on in the next."""
    for line in text.replace("\\\n", " ").splitlines():
        key, is_one, value = line.strip().partition("=")
        if is_one and key and not key.startswith(("#", ";", "[")):
            yield key.strip(), value.strip()


def unit_files(folders: Sequence[str]) -> Dict[str, List[str]]:
    """Unit → its file, where the first folder that has one counts, and its drop-ins."""
    found: Dict[str, List[str]] = {}
    drop_ins: Dict[str, List[str]] = {}
    for folder in folders:
        for name in names_in(folder):
            path = os.path.join(folder, name)
            if name.endswith(KINDS) and name not in found and _is_own_file(path, name):
                found[name] = [path]
            elif name.endswith(tuple(kind + ".d" for kind in KINDS)):
                drop_ins.setdefault(name[:-2], []).extend(
                    os.path.join(path, one) for one in names_in(path) if one.endswith(".conf")
                )
    for name, paths in drop_ins.items():
        if name in found:
            found[name] += paths
    return found


def _is_own_file(path: str, name: str) -> bool:
    """A file, or a link to one; not a second name of another unit."""
    return os.path.isfile(path) and (not os.path.islink(path) or os.path.basename(os.path.realpath(path)) == name)


def told_of(name: str, paths: List[str], target: Target) -> Optional[Dict[str, Any]]:
    """What a unit does to the targets, and the line with which it starts an engine; None: neither, or it is fleetctl's.

    ``paths`` are its file and its drop-ins. Scripts that its commands name are looked into.
    """
    acts_of, engine = [], None
    stem, kind = os.path.splitext(name)
    starts = stem + ".service" if kind in (".timer", ".path", ".socket") else None
    for path in paths:
        text = small_text(path)
        if path == paths[0] and text.startswith("# Made by fleetctl"):
            return None
        pairs = list(directives(text))
        commands = [value for key, value in pairs if key.startswith("Exec")]
        for key, value in pairs:
            if key in RELATIONS:
                named = [unit for unit in target.units if unit in value.split()]
                acts_of += [{"on": unit, "verb": key, "line": "%s=%s" % (key, value), "where": path} for unit in named]
                starts = None if key in ("Unit", "Service") else starts
        acts_of += found_in("\n".join(commands), path, commands, target)
        engine = engine or _engine_in(commands)
    if starts is not None and starts in target.units:
        acts_of.append({"on": starts, "verb": "Unit", "line": "its name, without Unit=", "where": paths[0]})
    if not acts_of and engine is None:
        return None
    return {"name": name, "acts": [shown(act) for act in acts_of][:MOST_ACTS], "engine": engine and redacted(engine)}


def _engine_in(commands: List[str]) -> Optional[str]:
    for command in commands:
        line = starts_engine(command)
        for _, text in [] if line else programs(command):
            line = line or starts_engine(text)
        if line:
            return line
    return None


def shown(act: Dict[str, Any]) -> Dict[str, Any]:
    """An act whose line can be shown."""
    return dict(act, line=redacted(act["line"]))
