"""What was seen on a box, as values. Field meanings are those of ``fleetctl/onbox/facts.py``."""

from __future__ import annotations

import hashlib
import re
import time
from typing import Any

from fleetctl.facts.adapters import AdaptersFacts
from fleetctl.facts.operations import MEASURES, road
from fleetctl.facts.seen import Seen as Seen  # told here too, with what is made of it
from fleetctl.facts.seen import first_fault as first_fault
from fleetctl.render.release import Release


class UnitFacts(Seen):
    """One systemd unit; words are systemd's. ``engine`` is the FLEETCTL_ENGINE of its main process."""

    load: str
    active: str
    sub: str
    enabled: str
    fragment: str = ""
    drop_ins: tuple[str, ...] = ()
    pid: int = 0
    invocation: str = ""
    restarts: int = 0
    result: str = ""
    status: str = ""
    reload: bool = False
    triggered_by: tuple[str, ...] = ()
    since: str = ""
    engine: str | None = None

    @property
    def down(self) -> bool:
        """Neither running nor about to."""
        return self.active in ("inactive", "failed")

    @property
    def at_boot(self) -> bool:
        """It starts when the box boots."""
        return self.enabled in ("enabled", "enabled-runtime")


class ProcessFacts(Seen):
    """A process that carries FLEETCTL_ENGINE, or one that listens on a port of interest."""

    pid: int
    comm: str
    unit: str | None = None
    engine: str | None = None

    def __str__(self) -> str:
        return f"{self.comm or 'a process'} (pid {self.pid}, {self.unit or 'no unit'})"


class PathFacts(Seen):
    """A program or a weights folder. ``proven``: checksums say what is in it, and it was not touched since."""

    kind: str
    size: int = 0
    executable: bool = False
    proven: bool | None = None


class ImageFacts(Seen):
    """A container image as a box has it; ``id`` is empty where it has none. ``problem``: why that cannot be told."""

    id: str = ""
    size: int = 0
    problem: str = ""


class Mention(Seen):
    """A foreign unit that names a superseded one."""

    unit: str
    names: str
    where: str


class ServerFacts(Seen):
    """A server of the running HAProxy, in its own words. ``admin`` is what it was told to be: ready, drain or maint."""

    status: str
    admin: str = ""
    running: int = 0
    queued: int = 0
    total: int = 0
    weight: int = 0
    check: str = ""

    @property
    def up(self) -> bool:
        """It takes new requests."""
        return self.status.startswith("UP") and self.weight > 0

    @property
    def closed(self) -> bool:
        """It takes none, however well its engine is: it is drained or was taken out. One that is down need not be."""
        if self.admin:
            return self.admin != "ready"
        return self.status.startswith("DRAIN") or self.status == "MAINT"


class ProxyFacts(Seen):
    """A running proxy. ``servers`` has ``BACKEND/SERVER`` keys; the ``bridge`` is not one of them."""

    description: str
    servers: dict[str, ServerFacts]
    bridge: ServerFacts | None = None


class FirewallFacts(Seen):
    """The table inet fleetctl as it is loaded. ``mark`` says which one it is, ``intact`` that it is as in its file.

    One that is ``tried`` goes away by itself. ``refused`` are addresses that it turned away within a day.
    """

    loaded: bool
    mark: str | None = None
    intact: bool = False
    tried: bool = False
    refused: tuple[str, ...] = ()


class Others(Seen):
    """What everything but the engines took of the memory at its worst, in bytes.

    ``together`` is the most at one time, ``total`` the sum of the worst of each (of ``services`` the largest are here).
    ``measured`` are the seconds that a guard has looked, since ``since``; 0: this is one look.
    """

    services: dict[str, int] = {}
    foreign: dict[str, int] = {}
    together: int = 0
    total: int = 0
    measured: float = 0.0
    since: float | None = None
    lowest: int | None = None
    peak: int | None = None


class VrrpFacts(Seen):
    """The distribution's own keepalived, where it runs or would at boot: router ids and addresses in its files."""

    router_ids: tuple[int, ...] = ()
    addresses: tuple[str, ...] = ()


STALE_AFTER = 15.0  # seconds without a heartbeat after which a lock may be taken over on request


class Lock(Seen):
    """Who holds the fleet; ``age`` and ``silent`` are seconds.

    ``owner`` names the holder's process (see :mod:`fleetctl.run.owner`); ``connected``: his program runs on the box.
    """

    token: str
    who: str
    host: str
    pid: int
    command: str
    age: float
    silent: float
    owner: str = ""
    connected: bool = True

    @property
    def alive(self) -> bool:
        """Its holder is connected and lets himself be heard."""
        return self.connected and self.silent < STALE_AFTER

    def __str__(self) -> str:
        return f"{self.who} on {self.host} (pid {self.pid}) runs `{self.command}`, since {self.age:.0f} s"


class MoveFacts(Seen):
    """A move that this box has the journal of. ``end`` is None while it is unfinished.

    ``started`` is by the clock of the operator's machine, ``written`` by that of the box (epoch seconds). Generations
    are None in what an earlier version wrote, too.
    """

    move: str
    end: dict[str, Any] | None
    operation: str
    from_layout: str | None
    to_layout: str | None
    who: str
    started: float
    written: float = 0.0
    from_generation: int | None = None
    generation: int | None = None

    @property
    def road(self) -> str:
        """From which layout to which; empty for what is about no layout."""
        return road(self.operation, self.from_layout, self.to_layout)

    @property
    def finish(self) -> str:
        """The command that finishes it when it was cut off; one that measured an engine is only taken back."""
        if self.operation in MEASURES:
            return self.undo
        if self.operation == "cutover":
            return f"fleetctl cutover --to {self.to_layout}"
        if self.operation == "doctor":
            return "fleetctl doctor --fix"
        if self.operation == "weights repair":
            return "fleetctl weights verify MODEL --repair"
        if self.operation.startswith("lora "):
            return f"the same `fleetctl {self.operation}`"
        if self.operation.startswith(("weights ", "images ")):
            return f"fleetctl {self.operation} MODEL"
        more = {"drain": " BOX", "undrain": " BOX", "teardown": " BOX", "upgrade": " MODEL --to BUILD"}
        return f"fleetctl {self.operation}{more.get(self.operation, '')}"

    @property
    def ways(self) -> str:
        """What can be done when it was cut off, in words."""
        if self.operation in MEASURES:
            return f"`{self.undo}` brings the engine back as it was"
        finish = self.finish if "`" in self.finish else f"`{self.finish}`"
        return f"{finish} finishes it, `{self.undo}` undoes it"

    @property
    def undo(self) -> str:
        """The command that takes it back when it was cut off."""
        return "fleetctl rollback --undo" if self.operation == "rollback" else "fleetctl rollback"


def suite_name(key: str) -> str:
    """A suite as people read it: a file of tasks without the digest of its text."""
    return re.sub(r"@[0-9a-f]{12}$", "", key)


class ScoreFacts(Seen):
    """What a build scored in a suite: 0 to 100, at an epoch second. ``build`` is its FLEETCTL_ENGINE."""

    suite: str
    build: str
    score: float
    at: float
    engine: str = ""
    categories: dict[str, float] = {}


class Drained(Seen):
    """A box that an operator took out of the proxy; ``since`` is in epoch seconds."""

    since: float
    by: str

    def __str__(self) -> str:
        return f"drained (since {time.strftime('%Y-%m-%d %H:%M', time.localtime(self.since))}, by {self.by})"


class BoxFacts(Seen):
    """All that one round trip tells of a box. Sizes are bytes."""

    hostname: str
    boot: str
    time: float
    python: str
    memory: dict[str, int]
    others: Others | None = None
    free: dict[str, int]
    units: dict[str, UnitFacts]
    ours: tuple[str, ...] = ()
    processes: tuple[ProcessFacts, ...] = ()
    mentions: tuple[Mention, ...] = ()
    paths: dict[str, PathFacts] = {}
    images: dict[str, ImageFacts] = {}
    ports: dict[int, ProcessFacts] = {}
    proxy: ProxyFacts | None = None
    generation: int | None = None
    generations: dict[int, dict[str, Any] | None] = {}
    drift: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    drained: Drained | None = None
    release: Release | None = None
    superseded: dict[str, UnitFacts] = {}
    moves: tuple[MoveFacts, ...] = ()
    scores: dict[str, ScoreFacts] = {}
    adapters: AdaptersFacts = AdaptersFacts()
    lock: Lock | None = None
    moving: str | None = None
    guard_out: dict[str, str] = {}
    haproxy: str | None = None
    firewall: FirewallFacts | None = None
    nft: str | None = None
    keepalived: str | None = None
    vrrp: VrrpFacts | None = None
    addresses: tuple[str, ...] = ()
    answering: dict[str, str] = {}
    notes: tuple[str, ...] = ()

    def digest(self) -> str:
        """Changes when anything that a plan rests on changes: not with time, counters or free memory."""
        pool = self.release.pool if self.release else None
        # Which engines of a pool are loaded changes by itself.
        lodging = {one.engine.head.unit for one in (pool.lodgers if pool else ())}
        units = sorted(
            (name, unit.active in ("active", "activating"), unit.enabled, unit.engine)
            for name, unit in self.units.items()
            if name not in lodging
        )
        servers = sorted((name, s.up) for name, s in self.proxy.servers.items()) if self.proxy else None
        firewall = self.firewall and (self.firewall.mark, self.firewall.intact, self.firewall.tried)
        images = (sorted((name, one.id) for name, one in self.images.items()),) if self.images else ()
        told = (self.boot, self.generation, units, servers, self.drift, sorted(self.superseded), firewall, *images)
        return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


Observed = dict[str, BoxFacts]
"""Box → what was seen on it."""


def lead_of(observed: Observed, wanted: str) -> str:
    """The box that keeps journal and lock: the one with an unfinished move, else the proxy's box."""
    found = unfinished(observed)
    return found[0] if found is not None else wanted


def unfinished(observed: Observed) -> tuple[str, MoveFacts] | None:
    """The box that keeps the journal of a move that has no end yet, and that move."""
    return next(((box, move) for box, facts in observed.items() if (move := open_move(facts)) is not None), None)


def open_move(facts: BoxFacts) -> MoveFacts | None:
    """The unfinished move of which a box keeps the journal."""
    return next((move for move in reversed(facts.moves) if move.end is None), None)
