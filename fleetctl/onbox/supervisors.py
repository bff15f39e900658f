"""What else on this box starts, stops or restarts our units: units of others, cron tables, user services, containers.

Only what names one of our units, containers or ports, or starts an engine itself, is told; nothing here judges it.
"""

import json
import os
import pwd
import re
import shutil
from typing import Any, Dict, Iterator, List, Tuple

from fleetctl.onbox.acting import ENGINE, Target, acts, found_in, programs, script, small_text, starts_engine
from fleetctl.onbox.main import PATH, Call, OpError
from fleetctl.onbox.process import run
from fleetctl.onbox.redacted import redacted
from fleetctl.onbox.superseded import UNIT_PATH, relations
from fleetctl.onbox.units import states

GENERATED = ("/run/systemd/transient", "/run/systemd/generator", "/run/systemd/generator.late")
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
CRON_FILES = ("/etc/crontab", "/etc/anacrontab", "/etc/rc.local")
CRON_FOLDERS = ("/etc/cron.d", "/var/spool/cron/crontabs", "/var/spool/cron")
CRON_SCRIPTS = ("/etc/cron.hourly", "/etc/cron.daily", "/etc/cron.weekly", "/etc/cron.monthly")
LINGER = "/var/lib/systemd/linger"
MOST = 50  # of each sort
MOST_USERS = 200
CONTAINER_LIMIT = 10  # seconds for each question to docker and podman


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


# Units of the system


def foreign_units(call: Call, target: Target, ours: List[str]) -> List[Dict[str, Any]]:
    """Units of others that name ours or start an engine: name, file, acts, the line that starts an engine, and states.

    ``triggers`` are the timers, paths and sockets that start it, with their states.
    """
    found: List[Dict[str, Any]] = []
    for name, paths in _unit_files().items():
        if name not in ours and len(found) < MOST:
            told = _told_of(name, paths, target)
            if told is not None:
                found.append(told)
    names = [one["name"] for one in found]
    seen = states(call, names)
    related = relations(call, names, "TriggeredBy")
    triggers = states(call, sorted({one for name in names for one in related[name].get("TriggeredBy", ())}))
    for one in found:
        state = seen[one["name"]]
        one.update({key: state[key] for key in ("load", "active", "sub", "enabled", "fragment", "restarts")})
        started_by = related[one["name"]].get("TriggeredBy", [])
        one["triggers"] = {
            by: {key: triggers[by][key] for key in ("active", "enabled", "fragment")} for by in started_by
        }
    return [one for one in found if one["load"] != "masked"]


def _unit_files() -> Dict[str, List[str]]:
    """Unit → its file, where the first folder that has one counts, and its drop-ins."""
    found: Dict[str, List[str]] = {}
    drop_ins: Dict[str, List[str]] = {}
    for folder in (*UNIT_PATH, *GENERATED):
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


def _told_of(name: str, paths: List[str], target: Target) -> Any:
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
    return {"name": name, "acts": [_shown(act) for act in acts_of][:MOST], "engine": engine and redacted(engine)}


def _engine_in(commands: List[str]) -> Any:
    for command in commands:
        line = starts_engine(command)
        for _, text in [] if line else programs(command):
            line = line or starts_engine(text)
        if line:
            return line
    return None


def _shown(act: Dict[str, Any]) -> Dict[str, Any]:
    return dict(act, line=redacted(act["line"]))


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
    acts_of = [_shown(act) for act in found_in(text or line, path, [_without_times(one) for one in commands], target)]
    engine = starts_engine(text or line)
    if not acts_of and engine is None:
        return []
    shown = redacted(line.strip() or (acts_of[0]["line"] if acts_of else engine or ""))
    return [{"file": path, "number": number, "line": shown, "acts": acts_of, "engine": engine is not None}]


def _without_times(line: str) -> str:
    """The command of a cron line, or what can be taken for it: `programs` looks for paths alone."""
    return re.sub(r"^\s*(@\w+|(\S+\s+){5})", "", line)


# Services of users


def user_units(target: Target) -> List[Dict[str, Any]]:
    """User units that name ours or start an engine: ``user`` (empty: all), file, acts, enabled, whether he lingers."""
    lingering = set(names_in(LINGER))
    places = [("", "/etc/systemd/user"), ("", "/usr/local/lib/systemd/user")]
    for known in pwd.getpwall()[:MOST_USERS]:
        if known.pw_dir.startswith("/") and (known.pw_uid >= 1000 or known.pw_uid == 0):
            places.append((known.pw_name, os.path.join(known.pw_dir, ".config/systemd/user")))
    found = []
    for user, folder in places:
        links = {
            name
            for pull in names_in(folder)
            if pull.endswith((".wants", ".requires"))
            for name in names_in(os.path.join(folder, pull))
        }
        for name in names_in(folder):
            path = os.path.join(folder, name)
            if not name.endswith(KINDS) or not os.path.isfile(path):
                continue
            told = _told_of(name, [path], target)
            if told is not None:
                pulled = name in links or any(os.path.splitext(one)[0] == os.path.splitext(name)[0] for one in links)
                lingers = user in lingering if user else bool(lingering)
                found.append(dict(told, user=user, file=path, enabled=pulled, lingers=lingers))
    return found[:MOST]


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
    except (OpError, ValueError):
        return []  # its daemon does not answer: nothing is known
    updates = program == "docker" or _updates(call, path)
    return [one for entry in inspected for one in _container(program, entry, target, updates)]


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
        if str(bound.get("HostPort", "")).isdigit()
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
