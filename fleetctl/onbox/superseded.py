"""Foreign units that fleetctl replaces: off now and at boot, and given back link by link.

What starts a unit at boot are symbolic links. They are removed and made again here and not by ``systemctl disable`` and
``enable``, which refuse aliases, take the file of a unit that was enabled by its path away from systemd, and cannot
make a link that no [Install] section names (``systemctl add-wants``).
"""

import os
import time
from typing import Any, Dict, Iterable, List, Sequence, Set, Tuple

from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.process import run
from fleetctl.onbox.units import states, systemctl

FOLDERS = ("/etc/systemd/system", "/run/systemd/system")
UNIT_PATH = (*FOLDERS, "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
PULLS = (".wants", ".requires", ".upholds")
UP = ("active", "activating", "reloading")
DOWN = ("inactive", "failed")
ROUNDS = 3  # stops of a unit that a watchdog, caught in its last run, starts once more
SETTLE = 3.0  # seconds that a unit gets to fail its start; one that loads for minutes is not waited for
LISTENERS = (".socket", ".path")  # they have to be there before the services that they start


def relations(call: Call, units: Sequence[str], properties: str) -> Dict[str, Dict[str, List[str]]]:
    """Unit → property → the unit names in it."""
    if not units:
        return {}
    done = run(call, ["systemctl", "show", "--no-pager", "-p", properties, "--", *units])
    if done["rc"] != 0:
        raise OpError("systemctl show failed: " + done["err"].strip())
    blocks = [
        {line.split("=", 1)[0]: line.split("=", 1)[1].split() for line in block.splitlines() if "=" in line}
        for block in done["out"].strip("\n").split("\n\n")
    ]
    return dict(zip(units, blocks))  # noqa: B905 - strict= came with Python 3.10


def all_links() -> Dict[str, str]:
    """Every symbolic link with which an administrator enables, links, masks or renames a unit: path → target."""
    found = {}
    for folder in FOLDERS:
        pulls = [os.path.join(folder, name) for name in _names_in(folder) if name.endswith(PULLS)]
        for place in (folder, *pulls):
            paths = [os.path.join(place, name) for name in _names_in(place)]
            found.update({path: os.readlink(path) for path in paths if os.path.islink(path)})
    return found


def _names_in(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _links_of(names: Set[str], links: Dict[str, str]) -> Dict[str, str]:
    """The links that are called as a unit is, or that give it one more name."""
    known = set(names)
    for path, target in links.items():
        to = os.path.normpath(os.path.join(os.path.dirname(path), target))
        # A systemd older than 246 tells only the aliases that something has used.
        if os.path.dirname(path) in FOLDERS and os.path.dirname(to) in UNIT_PATH and os.path.basename(to) in names:
            known.add(os.path.basename(path))
    return {path: target for path, target in links.items() if os.path.basename(path) in known}


def _wanted(state: Dict[str, Any]) -> List[str]:
    """The links of a unit that make it start; not the one that is its file, nor those of a unit that is masked."""
    if state["load"] in ("masked", "not-found"):
        return []
    return [
        path
        for path, target in state["links"].items()
        if target != os.devnull
        and not (os.path.dirname(path) in FOLDERS and os.path.basename(path) == state["id"])  # a linked unit file
    ]


@op("superseded_states")
def superseded_states(call: Call, units: List[str]) -> Dict[str, Dict[str, Any]]:
    """`units.states` with all that giving the units back takes.

    ``id`` is the name that an alias stands for, ``links`` are {path: target} and ``wanted`` the paths of those links
    that would start the unit.
    """
    links = all_links()
    related = relations(call, units, "Id,Names")
    found = {}
    for unit, state in states(call, units).items():
        real = "".join(related[unit].get("Id", ())) or unit
        names = {unit, real, *related[unit].get("Names", ())}
        found[unit] = dict(state, id=real, links=_links_of(names, links))
        found[unit]["wanted"] = _wanted(found[unit])
    return found


@op("supersede")
def supersede(call: Call, units: List[str], limit: float = 120) -> Dict[str, Dict[str, Any]]:
    """Take foreign units out of the boot and stop them, services last; verify that they are down and stay off.

    Like ``systemctl disable --now``, except that the file of a unit that was enabled by its path stays known.
    """
    before = superseded_states(call, units)
    gone = {path for state in before.values() for path in state["wanted"]}
    for path in gone:
        _unlink(path)
    if gone:
        systemctl(call, "daemon-reload")
    after = superseded_states(call, units)
    for _ in range(ROUNDS):
        running = {state["id"] for state in after.values() if state["active"] not in DOWN}
        if not running:
            break
        for unit in sorted(running, key=lambda unit: (unit.endswith(".service"), unit)):
            done = run(call, ["systemctl", "--no-ask-password", "stop", "--", unit], timeout=limit)
            if done["rc"] != 0 and "cancel" not in done["err"]:  # a start that comes in between cancels the stop
                raise OpError("systemctl stop %s: %s" % (unit, done["err"].strip()))
        after = superseded_states(call, units)
    for unit, state in after.items():
        if state["active"] not in DOWN:
            raise OpError(
                "%s is %s although it was disabled and stopped: something starts it again, "
                "list that under superseded: in fleet.yaml too" % (unit, state["active"])
            )
        if state["enabled"] in ("enabled", "enabled-runtime") or state["wanted"]:
            raise OpError("%s is still %s (%s)" % (unit, state["enabled"], ", ".join(state["wanted"]) or "by its file"))
    _refuse_boot(call, after)
    return after


def _refuse_boot(call: Call, off: Dict[str, Dict[str, Any]]) -> None:
    """OpError when a target that this boot has reached still pulls in a unit: the next boot would start it."""
    loaded = [unit for unit, state in off.items() if state["load"] == "loaded"]
    for unit, pulled in relations(call, loaded, "WantedBy,RequiredBy,UpheldBy").items():
        targets = sorted({name for names in pulled.values() for name in names if name.endswith(".target")})
        reached = [name for name, state in states(call, targets).items() if state["active"] == "active"]
        if reached:
            raise OpError(
                "%s would start at the next boot: %s pulls it in, and no link in %s says so; mask it "
                "(systemctl mask %s), or list that target under superseded: in fleet.yaml too"
                % (unit, ", ".join(reached), " or ".join(FOLDERS), unit)
            )


def _unlink(path: str) -> None:
    """Remove a link, and the .wants folder that it leaves empty, as systemctl disable does."""
    os.unlink(path)
    folder = os.path.dirname(path)
    if folder not in FOLDERS and not os.listdir(folder):
        os.rmdir(folder)


@op("unsupersede")
def unsupersede(call: Call, prior: Dict[str, Dict[str, Any]]) -> Dict[str, Any]:
    """Give foreign units back as `superseded_states` recorded them: links, then listeners, services and the rest.

    Returns ``{"states": …, "not_restored": {unit: reason}}``. A unit that does not come back raises nothing: it must
    not keep the others, and a fleet, from coming back.
    """
    known = {unit: {"id": unit, "links": {}, **state} for unit, state in prior.items() if state["load"] != "not-found"}
    lost = {unit: "its file was gone already" for unit, state in prior.items() if _ran_without_file(state)}
    lost.update(_relink(known))
    systemctl(call, "daemon-reload")
    wanted = {state["id"]: unit for unit, state in known.items() if state["active"] in UP and unit not in lost}
    for real in sorted(wanted, key=_turn):
        try:
            _start(call, real, set(wanted))
        except OpError as error:
            lost[wanted[real]] = str(error)
    after = _settled(call, list(known))
    for unit, state in after.items():
        was = known[unit]
        if unit in lost:
            continue
        if state["enabled"] != was["enabled"]:
            lost[unit] = "it was %s and is %s now" % (was["enabled"], state["enabled"] or "not known to systemd")
        elif was["active"] == "active" and state["active"] not in UP and not state["job"]:
            lost[unit] = "it was started and is %s now (%s)" % (state["active"], state["result"])
    return {"states": after, "not_restored": lost}


def _ran_without_file(state: Dict[str, Any]) -> bool:
    return state["load"] == "not-found" and state["active"] in UP


def _relink(known: Dict[str, Dict[str, Any]]) -> Dict[str, str]:
    """Make the links that are missing; the units for which that cannot be, with the reason."""
    lost = {}
    for unit, state in known.items():
        fragment, links = state["fragment"], state["links"]
        source = os.path.join(os.path.dirname(fragment), links.get(fragment, fragment))
        if fragment and not os.path.exists(source):
            lost[unit] = "its file %s is gone" % source
            continue
        try:
            taken = [path for path, target in links.items() if not _linked(path, target)]
        except OSError as error:
            lost[unit] = "its link %s cannot be made: %s" % (error.filename2 or error.filename, error.strerror)
            continue
        if taken:
            lost[unit] = "%s is something else now" % ", ".join(taken)
    return lost


def _linked(path: str, target: str) -> bool:
    """Make one link; False when there is something else in its place."""
    if not os.path.lexists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(target, path)
    return os.path.islink(path) and os.readlink(path) == target


def _turn(unit: str) -> Tuple[int, str]:
    """Listeners, then services, then timers and targets, which start services by themselves."""
    return (0 if unit.endswith(LISTENERS) else 1 if unit.endswith(".service") else 2), unit


def _start(call: Call, unit: str, wanted: Set[str]) -> None:
    """Start a unit, one of several that are ``wanted``; OpError when that cannot be."""
    state = states(call, [unit])[unit]
    if state["active"] in ("active", "reloading"):
        return
    if state["load"] == "masked":
        raise OpError("it is masked: it ran before, and starts again only after systemctl unmask %s" % unit)
    if state["load"] != "loaded":
        raise OpError("systemd cannot load it (%s)" % state["load"])
    if unit.endswith(".socket"):
        # A socket is refused while its service runs. The service is started again after it.
        triggered = states(call, relations(call, [unit], "Triggers")[unit].get("Triggers", ()))
        for service, its in triggered.items():
            if service in wanted and its["load"] == "loaded":
                systemctl(call, "stop", "--", service, timeout=120)
    # A status other than 0 says only that it was not loaded, and so has no failed starts that count.
    run(call, ["systemctl", "--no-ask-password", "reset-failed", "--", unit])
    systemctl(call, *(["start", "--no-block"] if unit.endswith(".service") else ["start"]), "--", unit)


def _settled(call: Call, units: Sequence[str]) -> Dict[str, Dict[str, Any]]:
    """States once no start is under way, or after SETTLE."""
    deadline = time.monotonic() + SETTLE
    while True:
        found = superseded_states(call, list(units))
        if not _under_way(found.values()) or time.monotonic() > deadline:
            return found
        call.check()
        time.sleep(0.1)


def _under_way(found: Iterable[Dict[str, Any]]) -> bool:
    return any(state["job"] or state["active"] == "activating" for state in found)
