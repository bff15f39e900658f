"""Taking fleetctl's own units and folders off a box: the last thing that teardown does."""

import contextlib
import glob
import os
import shutil
from typing import Any, Dict, List

from fleetctl.onbox.journal import begun, end
from fleetctl.onbox.kept import ETC, MOVES, VAR, superseded
from fleetctl.onbox.lock import lock_state, require_claim
from fleetctl.onbox.main import Call, OpError, op
from fleetctl.onbox.setup_record import records
from fleetctl.onbox.state import install, uninstall
from fleetctl.onbox.superseded import unsupersede
from fleetctl.onbox.units import states, systemctl

UNITS = "/etc/systemd/system"
STOP = 180.0  # seconds for all of them to stop
RUN = ("/run/fleetctl-*",)
QUEUE = "/var/lib/private/fleetctl-nats"  # where systemd keeps what fleetctl-nats.service stores
QUEUE_LINK = "/var/lib/fleetctl-nats"


def _files() -> List[str]:
    """Unit files and drop-ins that fleetctl made."""
    found = glob.glob(UNITS + "/fleetctl-*") + glob.glob(UNITS + "/*.d/fleetctl*.conf")
    return sorted(path for path in found if os.path.isfile(path) and not os.path.islink(path) and _made_by_us(path))


def _made_by_us(path: str) -> bool:
    """Only what says so: a file of somebody else may be called alike."""
    if path in {one for record in records().values() for one in record.get("files", {})}:
        return False  # it is a part of setup, which takes it back itself
    with open(path, encoding="utf-8", errors="replace") as source:
        return source.readline().startswith("# Made by fleetctl")


def _units(paths: List[str]) -> List[str]:
    return [os.path.basename(path) for path in paths if os.path.dirname(path) == UNITS]


@op("setup_strip_look")
def setup_strip_look(call: Call) -> Dict[str, Any]:
    """What of fleetctl is there to take off: unit files with how their units are, superseded units, folders."""
    files = _files()
    told = states(call, _units(files)) if files else {}
    return {
        "files": files,
        "units": {unit: {"active": one["active"], "enabled": one["enabled"]} for unit, one in told.items()},
        "superseded": superseded(),
        "etc": os.path.isdir(ETC),
        "var": os.path.isdir(VAR),
    }


@op("setup_strip")
def setup_strip(call: Call, move: str) -> Dict[str, Any]:
    """Stop and disable fleetctl's units, remove their files, and give back the units that they had replaced."""
    require_claim()
    files = _files()
    units = _units(files)
    if units:
        there = states(call, units)
        enabled = [unit for unit in units if there[unit]["enabled"] in ("enabled", "enabled-runtime")]
        if enabled:
            systemctl(call, "disable", *enabled)
        up = [unit for unit in units if there[unit]["active"] not in ("inactive", "failed")]
        if up:
            systemctl(call, "stop", *up, timeout=STOP)
    install(call, move, "", [], files)
    systemctl(call, "daemon-reload")
    given = superseded()
    if given:
        unsupersede(call, given)
    return {"removed": files, "given_back": sorted(given)}


@op("setup_unstrip")
def setup_unstrip(call: Call, move: str, prior: Dict[str, Any]) -> Dict[str, Any]:
    """Bring fleetctl's units back as they were before ``setup_strip``."""
    require_claim()
    uninstall(call, move, prior["files"])
    systemctl(call, "daemon-reload")
    enabled = [unit for unit, one in prior["units"].items() if one["enabled"] in ("enabled", "enabled-runtime")]
    if enabled:
        systemctl(call, "enable", *enabled)
    up = [unit for unit, one in prior["units"].items() if one["active"] not in ("inactive", "failed")]
    if up:
        systemctl(call, "start", "--no-block", *up)
    return {}


def _aside(move: str) -> str:
    return "%s/%s/etc" % (MOVES, move)


@op("setup_put_aside")
def setup_put_aside(call: Call, move: str) -> Dict[str, Any]:
    """Move /etc/fleetctl out of the way; it goes for good with all that is kept."""
    require_claim()
    if os.path.isdir(ETC):
        shutil.rmtree(_aside(move), ignore_errors=True)
        shutil.move(ETC, _aside(move))
    return {}


@op("setup_put_back")
def setup_put_back(call: Call, move: str) -> Dict[str, Any]:
    """Bring /etc/fleetctl back."""
    require_claim()
    if os.path.isdir(_aside(move)) and not os.path.exists(ETC):
        shutil.move(_aside(move), ETC)
    return {}


@op("setup_forget")
def setup_forget(call: Call) -> Dict[str, Any]:
    """Remove what is kept of all moves, when nothing of fleetctl is left and nobody is at work. Returns what stays.

    This is no step: the journal goes too.
    """
    open_moves = [name for name in begun() if end(name) is None]
    if open_moves:
        raise OpError("a move is open: %s" % ", ".join(open_moves))
    if lock_state() is not None:
        raise OpError("somebody holds the fleet")
    if os.path.isdir(ETC) or _files():
        raise OpError("there is something of fleetctl left: %s" % ", ".join([ETC, *_files()]))
    shutil.rmtree(VAR, ignore_errors=True)
    shutil.rmtree(QUEUE, ignore_errors=True)
    if os.path.islink(QUEUE_LINK):
        os.unlink(QUEUE_LINK)
    for pattern in RUN:
        for path in glob.glob(pattern):
            with contextlib.suppress(OSError):
                os.unlink(path) if not os.path.isdir(path) else shutil.rmtree(path)
    return {"left": os.path.isdir(VAR)}
