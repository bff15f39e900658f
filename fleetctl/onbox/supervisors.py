"""What else on this box starts, stops or restarts our units: units of others, cron tables, user services, containers.

Only what names one of our units, containers or ports, or starts an engine itself, is told; nothing here judges it.
"""

import contextlib
import json
import os
import pwd
import re
import shutil
from typing import Any, Dict, Iterator, List, Set

from fleetctl.onbox.acting import ENGINE, Target, acts, found_in, script, small_text, starts_engine
from fleetctl.onbox.main import PATH, Call, OpError
from fleetctl.onbox.process import run
from fleetctl.onbox.redacted import redacted
from fleetctl.onbox.superseded import relations
from fleetctl.onbox.unitfiles import EVERYWHERE, KINDS, names_in, shown, told_of, unit_files
from fleetctl.onbox.units import states

CRON_FILES = ("/etc/crontab", "/etc/anacrontab", "/etc/rc.local")
CRON_FOLDERS = ("/etc/cron.d", "/var/spool/cron/crontabs", "/var/spool/cron")
CRON_SCRIPTS = ("/etc/cron.hourly", "/etc/cron.daily", "/etc/cron.weekly", "/etc/cron.monthly")
LINGER = "/var/lib/systemd/linger"
MOST = 50  # of each sort
MOST_USERS = 200
CONTAINER_LIMIT = 10  # seconds for each question to docker and podman


# Units of the system


def foreign_units(call: Call, target: Target, ours: List[str]) -> List[Dict[str, Any]]:
    """Units of others that name ours or start an engine: name, file, acts, the line that starts an engine, and states.

    ``triggers`` are the timers, paths and sockets that start it, with their states. ``file`` is where a unit's file
    really lies: it may only be linked into systemd's folders.
    """
    found: List[Dict[str, Any]] = []
    for name, paths in unit_files(EVERYWHERE).items():
        if name not in ours and len(found) < MOST:
            told = told_of(name, paths, target)
            if told is not None:
                found.append(told)
    names = [one["name"] for one in found]
    seen = states(call, names)
    triggers = triggers_of(call, names)
    for one in found:
        state = seen[one["name"]]
        one.update({key: state[key] for key in ("load", "active", "sub", "enabled", "fragment", "restarts")})
        one["file"] = os.path.realpath(state["fragment"]) if state["fragment"] else ""
        one["triggers"] = triggers[one["name"]]
    return [one for one in found if one["load"] != "masked"]


def triggers_of(call: Call, names: List[str]) -> Dict[str, Dict[str, Dict[str, str]]]:
    """Unit → the timers, paths and sockets that start it → how each of them is, and where its file really lies."""
    related = relations(call, names, "TriggeredBy")
    seen = states(call, sorted({one for name in names for one in related[name].get("TriggeredBy", ())}))
    return {
        name: {
            by: {
                "active": seen[by]["active"],
                "enabled": seen[by]["enabled"],
                "file": os.path.realpath(seen[by]["fragment"]) if seen[by]["fragment"] else "",
            }
            for by in related[name].get("TriggeredBy", ())
        }
        for name in names
    }


# cron


def cron_entries(target: Target) -> List[Dict[str, Any]]:
    """Lines of cron tables and of /etc/rc.local, and scripts in cron.hourly and the like, that act or start an engine.

    ``file``, ``number`` of the line (0: the whole script), the ``line``, its ``acts`` and whether it starts an engine.
    """
    found = []
    for path in _cron_tables():
        for number, line in enumerate(small_text(path).splitlines(), 1):
            if line.strip() and not line.lstrip().startswith("#"):
                found += _entry(path, number, line, [line], target)
    for folder in CRON_SCRIPTS:
        for name in names_in(folder):
            path = os.path.join(folder, name)
            text = script(path)
            if text:
                found += _entry(path, 0, "", [line for line in text.splitlines() if "/" in line], target, text)
    return found[:MOST]


def _cron_tables() -> Iterator[str]:
    yield from (path for path in CRON_FILES if os.path.isfile(path))
    for folder in CRON_FOLDERS:
        for name in names_in(folder):
            path = os.path.join(folder, name)
            if os.path.isfile(path) and not name.startswith("."):
                yield path


def _entry(
    path: str, number: int, line: str, commands: List[str], target: Target, text: str = ""
) -> List[Dict[str, Any]]:
    acts_of = [shown(act) for act in found_in(text or line, path, [_without_times(one) for one in commands], target)]
    engine = starts_engine(text or line)
    if not acts_of and engine is None:
        return []
    text = redacted(line.strip() or (acts_of[0]["line"] if acts_of else engine or ""))
    return [{"file": path, "number": number, "line": text, "acts": acts_of, "engine": engine is not None}]


def _without_times(line: str) -> str:
    """The command of a cron line, or what can be taken for it: `programs` looks for paths alone."""
    return re.sub(r"^\s*(@\w+|(\S+\s+){5})", "", line)


# Services of users


def user_units(target: Target) -> List[Dict[str, Any]]:
    """User units that name ours or start an engine: ``user`` (empty: all), file, acts, enabled, whether he lingers."""
    homes = {"": "/etc/systemd/user"}
    for known in pwd.getpwall()[:MOST_USERS]:
        if known.pw_dir.startswith("/") and (known.pw_uid >= 1000 or known.pw_uid == 0):
            homes[known.pw_name] = os.path.join(known.pw_dir, ".config/systemd/user")
    return told_of_users(homes, set(names_in(LINGER)), target)


def told_of_users(homes: Dict[str, str], lingering: Set[str], target: Target) -> List[Dict[str, Any]]:
    """`user_units` of these users: name → folder of his units, that of all users under the empty name."""
    links = {user: _pulled(folder) for user, folder in homes.items()}
    found = []
    for user, folder in homes.items():
        for name in names_in(folder):
            path = os.path.join(folder, name)
            if not name.endswith(KINDS) or not os.path.isfile(path):
                continue
            told = told_of(name, [path], target)
            if told is None:
                continue
            # What all users have can be enabled by one of them, and a service by its timer.
            pulled = links[user] if user else set().union(*links.values())
            enabled = any(os.path.splitext(one)[0] == os.path.splitext(name)[0] for one in pulled)
            lingers = user in lingering if user else bool(lingering)
            found.append(dict(told, user=user, file=path, enabled=enabled, lingers=lingers))
    return found[:MOST]


def _pulled(folder: str) -> Set[str]:
    """Units that something in a folder starts."""
    pulls = [name for name in names_in(folder) if name.endswith((".wants", ".requires"))]
    return {name for pull in pulls for name in names_in(os.path.join(folder, pull))}


# Containers


def containers(call: Call, target: Target) -> List[Dict[str, Any]]:
    """Containers that are engines, use one of our ports or have the name of one of ours, with their restart policy."""
    found: List[Dict[str, Any]] = []
    for program in ("docker", "podman"):
        path = shutil.which(program, path=PATH)
        if path is None or os.path.realpath(path).endswith("/podman") != (program == "podman"):
            continue  # not here, or podman under docker's name
        found += _containers_of(call, program, path, target)
    return found[:MOST]


def _containers_of(call: Call, program: str, path: str, target: Target) -> List[Dict[str, Any]]:
    try:
        listed = run(call, [path, "ps", "--all", "--quiet", "--no-trunc"], timeout=CONTAINER_LIMIT)
        ids = listed["out"].split()[: 4 * MOST]
        if listed["rc"] != 0 or not ids:
            return []
        told = run(call, [path, "inspect", "--type", "container", *ids], timeout=2 * CONTAINER_LIMIT)
        inspected = json.loads(told["out"] or "[]")
    except (OpError, ValueError, RecursionError):
        return []  # its daemon does not answer: nothing is known
    updates = program == "docker" or _updates(call, path)
    found: List[Dict[str, Any]] = []
    for entry in inspected if isinstance(inspected, list) else []:
        with contextlib.suppress(AttributeError, TypeError, ValueError, LookupError):  # one that is none hides no other
            found += _container(program, entry, target, updates)
    return found


def _updates(call: Call, path: str) -> bool:
    """This podman can change the restart policy of a container (5.1 and later)."""
    try:
        return "--restart" in run(call, [path, "update", "--help"], timeout=CONTAINER_LIMIT)["out"]
    except OpError:
        return False


def _container(program: str, entry: Dict[str, Any], target: Target, updates: bool) -> List[Dict[str, Any]]:
    config, host = entry.get("Config") or {}, entry.get("HostConfig") or {}
    policy = host.get("RestartPolicy") or {}
    name = str(entry.get("Name", "")).lstrip("/")
    command = " ".join(str(word) for key in ("Entrypoint", "Cmd") for word in _words(config.get(key)))
    image = str(config.get("Image", ""))
    ports = sorted(
        int(bound["HostPort"])
        for bindings in (host.get("PortBindings") or {}).values()
        for bound in bindings or []
        if re.fullmatch("[0-9]{1,5}", str(bound.get("HostPort", "")))
    )
    asked = [int(word) for word in re.findall(r"--port[= ](\d+)", command)] if host.get("NetworkMode") == "host" else []
    engine = bool(ENGINE.search(image + " " + command)) or "vllm" in image.rsplit("/", 1)[-1]
    clash = sorted({*ports, *asked} & set(target.ports))
    if not engine and not clash and name not in target.containers and not acts(command, target):
        return []
    return [
        {
            "program": program,
            "name": name,
            "image": image,
            "policy": str(policy.get("Name") or "no"),
            "retries": int(policy.get("MaximumRetryCount") or 0),
            "status": str((entry.get("State") or {}).get("Status", "")),
            "engine": engine,
            "ports": clash,
            "updates": updates,
        }
    ]


def _words(value: Any) -> List[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]
