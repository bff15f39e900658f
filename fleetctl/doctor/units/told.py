"""What a box tells of its units. Field meanings are those of ``fleetctl/onbox/examine_units.py``."""

from __future__ import annotations

import re

from fleetctl.facts.types import Seen

_SPAN = re.compile(r"([\d.]+)(us|ms|s|min|h|d|w|month|y)")
_SECONDS = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1,
    "min": 60,
    "h": 3600,
    "d": 86400,
    "w": 604800,
    "month": 2629800,
    "y": 31557600,
}
UP = ("active", "activating", "reloading")
AT_BOOT = ("enabled", "enabled-runtime")


def name_to_enable(name: str, file: str) -> str:
    """What ``systemctl enable`` has to be told: the path of a file that it knows by a link alone, or the unit's name.

    ``systemctl disable`` takes that link away, and with it the unit.
    """
    known = not file or file.startswith(("/etc/systemd/", "/run/systemd/", "/usr/", "/lib/"))
    return name if known else file


class Log(Seen):
    """Automatic restarts of a unit within the last hour, in epoch seconds, and what systemd last said of its starts."""

    known: bool = True
    times: tuple[float, ...] = ()
    refused: bool = False
    collisions: tuple[str, ...] = ()


class Detail(Seen):
    """How one of our units is set up, as systemd has it loaded."""

    type: str = ""
    restart: str = ""
    burst: int = 0
    interval: str = ""
    log: Log | None = None

    @property
    def limit(self) -> float:
        """StartLimitIntervalSec= in seconds; 0: there is no limit."""
        return sum(float(number) * _SECONDS[unit] for number, unit in _SPAN.findall(self.interval))


class DropIn(Seen):
    """A file that changes one of our units."""

    unit: str
    path: str
    keys: tuple[str, ...]
    lines: tuple[str, ...]


class Act(Seen):
    """A line that does something to a unit, a container, engines or a port."""

    on: str
    verb: str
    line: str
    where: str


class Trigger(Seen):
    """A timer, path or socket that starts a unit."""

    active: str
    enabled: str
    file: str = ""

    @property
    def awake(self) -> bool:
        return self.active in UP or self.enabled in AT_BOOT


class Replaced(Seen):
    """A unit that has to stay away: what starts it, and where its file lies."""

    triggers: dict[str, Trigger] = {}
    file: str = ""


class Foreign(Seen):
    """A unit of somebody else. ``engine`` is the line that starts an engine, ``file`` where its file really lies."""

    name: str
    acts: tuple[Act, ...] = ()
    engine: str | None = None
    load: str = "loaded"
    active: str = "inactive"
    enabled: str = "disabled"
    fragment: str = ""
    file: str = ""
    triggers: dict[str, Trigger] = {}

    @property
    def awake(self) -> bool:
        """It runs, starts at boot, or something starts it."""
        return self.active in UP or self.enabled in AT_BOOT or any(one.awake for one in self.triggers.values())


class Cron(Seen):
    """An entry of a cron table (``number``: its line), or a whole script (0)."""

    file: str
    number: int
    line: str
    acts: tuple[Act, ...] = ()
    engine: bool = False


class UserUnit(Seen):
    """A unit of a user's own systemd; of all users' where ``user`` is empty."""

    name: str
    user: str
    file: str
    acts: tuple[Act, ...] = ()
    engine: str | None = None
    enabled: bool = False
    lingers: bool = False


class Container(Seen):
    """A container that looks like an engine, uses one of our ports or has the name of one of ours."""

    program: str
    name: str
    image: str
    policy: str
    retries: int = 0
    status: str = ""
    engine: bool = False
    ports: tuple[int, ...] = ()
    updates: bool = True


class UnitsTold(Seen):
    """The whole answer of a box."""

    units: dict[str, Detail] = {}
    drop_ins: tuple[DropIn, ...] = ()
    foreign: tuple[Foreign, ...] = ()
    replaced: dict[str, Replaced] = {}
    cron: tuple[Cron, ...] = ()
    user: tuple[UserUnit, ...] = ()
    containers: tuple[Container, ...] = ()
    diffs: dict[str, tuple[str, ...]] = {}
