"""What the guards of the boxes say, as values, and what is wrong with them."""

from __future__ import annotations

import time
from typing import Any

from fleetctl.facts.gather import OOM_DAEMONS
from fleetctl.facts.types import Seen
from fleetctl.remote.boxes import Boxes
from fleetctl.remote.connection import BoxConnection
from fleetctl.spec.units import size


class GuardedEngine(Seen):
    """One engine as the guard sees it. ``phase`` is in, leaving, stopping, stopped or starting; ``out`` says why."""

    unit: str
    active: str = ""
    phase: str = ""
    out: str = ""
    running: int = 0
    waiting: int = 0
    counters: bool = False


class GuardedPool(Seen):
    """The pool of the box as the guard sees it. ``hold`` says why nothing may be loaded, ``memory`` how many bytes its
    engines may take (None: all that is the pool's), ``out`` why units stay out; ``worker``: whether one answers."""

    hold: str = ""
    memory: int | None = None
    out: dict[str, str] = {}
    worker: bool = True


class GuardStatus(Seen):
    """What a guard said within the last seconds. Sizes are bytes, times seconds since the epoch."""

    since: float
    act: str
    held: str = ""
    short: str = ""
    total: int
    available: int
    lowest: int
    swap_free: int = 0
    pressure: float | None = None
    marks: tuple[int, int]
    listening: bool = True
    asked: int = 0
    refused: tuple[str, ...] = ()
    engines: tuple[GuardedEngine, ...] = ()
    pool: GuardedPool | None = None


class GuardEvent(Seen):
    """Something that a guard did or saw, and why."""

    at: float
    kind: str
    unit: str = ""
    why: str = ""
    available: int | None = None

    def __str__(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.at))
        what = f"{self.unit}: " if self.unit else ""
        done = "" if self.kind == "note" else f"{self.kind.replace('_', ' ')}: "
        return f"{when}  {what}{done}{self.why}"


class GuardFacts(Seen):
    """The guard of one box, ``engine``: on which the current layout has one.

    ``lowest`` and ``pressure`` are the worst of ``minutes`` minutes that it wrote down.
    """

    unit: dict[str, Any]
    others: tuple[str, ...] = ()
    status: GuardStatus | None = None
    engine: bool = True
    events: tuple[GuardEvent, ...] = ()
    lowest: int | None = None
    pressure: float | None = None
    minutes: int = 0

    @property
    def installed(self) -> bool:
        """Its unit is there."""
        return bool(self.unit["load"] == "loaded")


def gather_guards(boxes: Boxes, events: int) -> dict[str, GuardFacts]:
    """What the guards of all boxes say. Raises FleetError naming each box that did not answer."""

    def ask(box: BoxConnection) -> Any:
        return box.call("guard_status", daemons=sorted(OOM_DAEMONS), events=events, timeout=30)

    return {name: GuardFacts.model_validate(told) for name, told in boxes.each(ask).items()}


def guard_problems(name: str, facts: GuardFacts, *, wanted: bool) -> list[str]:
    """What is wrong with the guard of a box, one sentence each. ``wanted``: fleet.yaml has ``guard:``."""
    if not facts.installed:
        missing = wanted and facts.engine
        return [f"{name}: there is no guard, and fleet.yaml wants one: fleetctl guard install"] if missing else []
    found = []
    if facts.unit["active"] != "active" or facts.status is None:
        found.append(f"{name}: the guard does not run: journalctl -u fleetctl-guard there says why")
        return found
    status = facts.status
    if not status.listening:
        found.append(f"{name}: the guard cannot tell the proxy anything: its port is taken")
    elif status.refused and not status.asked:
        found.append(f"{name}: {', '.join(status.refused)} asks the guard, and is not known as the proxy's address")
    found += [f"{name}: {engine.unit} is {engine.phase}: {engine.out}" for engine in status.engines if engine.out]
    if status.pool is not None:
        found += [f"{name}: {unit} stays out of the pool: {why}" for unit, why in status.pool.out.items()]
        if status.pool.memory is not None:
            found.append(f"{name}: the pool may take {size(status.pool.memory)} for now: the box was short of memory")
        if not status.pool.worker:
            found.append(f"{name}: the worker of the pool does not answer the guard")
    if status.short:
        found.append(f"{name}: memory is short: {status.short}")
    if facts.others:
        found.append(f"{name}: {', '.join(facts.others)} acts on short memory too: see docs/guard.md")
    if status.pressure is None:
        found.append(f"{name}: this kernel does not tell memory pressure (boot it with psi=1): only sizes are watched")
    return found


def told(facts: GuardFacts) -> str:
    """The guard of a box in one line."""
    status = facts.status
    if not facts.installed:
        return "no guard"
    if status is None:
        return f"guard is {facts.unit['active']}"
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(status.since))
    pressure = "unknown" if status.pressure is None else f"{status.pressure:.0f} %"
    lowest = min(one for one in (status.lowest, facts.lowest) if one is not None)
    line = (
        f"on guard since {since} ({status.act}): {size(status.available)} available, lowest {size(lowest)}, acts below "
        f"{size(status.marks[0])}; memory pressure {pressure}"
    )
    return f"{line}; stands back: {status.held}" if status.held else line
