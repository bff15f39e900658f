"""What is on this box: memory, the current layout, and whether somebody works on the fleet."""

import fcntl
import json
import os
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from fleetctl.guard.seen import Memory

CURRENT = "/etc/fleetctl/current"
VAR = "/var/lib/fleetctl"
# As fleetctl/onbox has them: a move holds the first one's lock for as long as it is connected, and leaves the second
# one from its beginning until its end, whether it is connected or not. The third is an operator's.
CLAIM = "/run/fleetctl-claim.json"
MOVING = VAR + "/moving.json"
DRAINED = VAR + "/drained.json"
# What this program does is done under this lock, which a move takes once before it begins.
ACTING = "/run/fleetctl-guard.lock"

MEMINFO = os.environ.get("FLEETCTL_GUARD_MEMINFO") or "/proc/meminfo"
PRESSURE = os.environ.get("FLEETCTL_GUARD_PRESSURE") or "/proc/pressure/memory"


class Place(NamedTuple):
    """One engine of the current layout that has a rank on this box."""

    unit: str
    id: str
    answers: bool
    """It is the head: it has a port, and a server in the proxy."""
    server: str
    """BACKEND/SERVER of the proxy."""
    address: str
    port: int
    model: str
    """A name under which it serves."""
    fellows: Tuple[str, ...] = ()
    """The boxes of its other ranks."""
    most: int = 0
    """The share of the box's memory that its rank here was given, in bytes."""
    path: str = ""
    """Where a question proves it; empty: a completion does."""
    question: str = ""
    """The JSON of that question."""


def now() -> float:
    """Seconds since boot, the same for every program."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def memory() -> Memory:
    """Memory of the box now. Raises OSError, KeyError or ValueError where /proc is not as Linux has it."""
    with open(MEMINFO) as source:
        rows = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in source if line.rstrip().endswith("kB")}
    return Memory(rows["MemTotal"], rows["MemAvailable"], rows.get("SwapTotal", 0), rows.get("SwapFree", 0), pressure())


def pressure() -> Optional[float]:
    """PSI's full avg10 of memory, in percent. None: this kernel does not say (psi=0), which is not the same as 0."""
    try:
        with open(PRESSURE) as source:
            for line in source:
                words = line.split()
                if words and words[0] == "full":
                    return float(dict(word.split("=") for word in words[1:])["avg10"])
    except (OSError, ValueError, KeyError):
        return None
    return None


class Layout:
    """The current layout of this box, read again when another generation becomes current."""

    def __init__(self, box: str) -> None:
        self._box = box
        self._read = ""
        self.places: List[Place] = []

    def look(self) -> List[Place]:
        """Engines with a rank here, those with the largest share of memory first; none while no layout is current."""
        try:
            target = os.readlink(CURRENT)
        except OSError:
            self._read, self.places = "", []
            return []
        if target != self._read:
            path = os.path.join(os.path.dirname(CURRENT), target, "release.json")
            try:
                with open(path, encoding="utf-8") as source:
                    self.places = places_in(json.load(source), self._box)
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                self.places = []  # damaged: what is not known for certain is left alone
            self._read = target
        return self.places


def places_in(release: Dict[str, Any], box: str) -> List[Place]:
    """Engines of a release that have a rank on a box, those with the largest share of memory first."""
    memory = {budget["box"]: budget["memory"] for budget in release.get("budgets", ())}.get(box, 0)
    backends = {one["name"]: one for one in (release.get("proxy") or {}).get("backends", ())}
    found = []
    for engine in release["engines"]:
        for rank in engine["ranks"]:
            if rank["box"] == box:
                place = Place(
                    unit=str(rank["unit"]),
                    id=str(engine["id"]),
                    answers=rank["rank"] == 0,
                    server="%s/%s" % (engine["backend"], engine["server"]),
                    address=str(engine["address"]),
                    port=int(engine["port"]),
                    model=str(engine["served_as"][0]),
                    fellows=tuple(str(other["box"]) for other in engine["ranks"] if other["box"] != box),
                    most=int(float(rank["share"]) * memory),
                    path=str(backends.get(engine["backend"], {}).get("path", "")),
                    question=str(backends.get(engine["backend"], {}).get("question", "")),
                )
                found.append((float(rank["share"]), place))
    return [place for _, place in sorted(found, key=lambda pair: (-pair[0], pair[1].unit))]


def held() -> str:
    """Why nothing may be done now; empty: nobody works on the fleet."""
    if _is_locked(CLAIM) and not (claim := _object(CLAIM)).get("aside"):  # aside: engines are not touched
        return "%s works on the fleet" % (claim.get("who") or "somebody")
    if os.path.exists(MOVING):
        told = _object(MOVING)
        return "the %s by %s has not ended" % (told.get("operation") or "move", told.get("who") or "somebody")
    if os.path.exists(DRAINED):
        return "the box is drained by %s" % (_object(DRAINED).get("by") or "somebody")
    return ""


def _is_locked(path: str) -> bool:
    try:
        with open(path) as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _object(path: str) -> Dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as source:
            return dict(json.load(source))
    except (OSError, ValueError, TypeError):
        return {}
