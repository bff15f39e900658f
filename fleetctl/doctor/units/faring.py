"""How the engines' units fared: restart storms, starts that were refused, Type=notify, container names. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from fleetctl.doctor.finding import Finding, Severity
from fleetctl.doctor.settled import Settled
from fleetctl.doctor.units.kinds import COLLISION, NOTIFY, REFUSED, STORM
from fleetctl.doctor.units.told import Detail, Log, UnitsTold
from fleetctl.spec.units import seconds

STORM_FROM = 3  # automatic restarts since the unit was last started, within an hour
ONGOING = 3.0  # mean intervals without a restart after which it is over


@dataclass(frozen=True)
class Storm:
    """Restarts of one unit: how many, every how many seconds, when the last, and whether a limit ends them."""

    count: int
    every: float
    last: float
    endless: bool


def _detail(told: UnitsTold | None, unit: str) -> tuple[Detail, Log]:
    detail = (told.units.get(unit) if told else None) or Detail()
    return detail, detail.log or Log(known=False)


def storm(view: Settled, box: str, unit: str, told: UnitsTold | None) -> Storm | None:
    """The restarts of a unit since somebody last started it; None where they are few, or none is of this hour."""
    state = view.facts(box).units.get(unit)
    if state is None or state.restarts < STORM_FROM:
        return None
    detail, log = _detail(told, unit)
    times = log.times[-state.restarts :]
    if len(times) < STORM_FROM:
        return None
    every = (times[-1] - times[0]) / (len(times) - 1)
    endless = not detail.limit or not detail.burst or every * detail.burst > detail.limit
    return Storm(len(times), every, times[-1], endless)


def given_up(view: Settled, box: str, unit: str, told: UnitsTold | None) -> bool:
    """systemd refuses to start the unit again."""
    state = view.facts(box).units.get(unit)
    _, log = _detail(told, unit)
    return state is not None and state.active == "failed" and (log.refused or state.result == "start-limit-hit")


def faring(view: Settled, box: str, told: UnitsTold) -> Iterator[Finding]:
    """What is not right with the engines' units on a box."""
    facts = view.facts(box)
    for unit, (engine, _) in view.ranks(box).items():
        state = facts.units.get(unit)
        if state is None:
            continue
        detail, log = _detail(told, unit)
        if given_up(view, box, unit, told):
            yield REFUSED.found(
                box,
                unit,
                f"systemd does not start {unit} any more: {engine.id} stays down on {box}",
                f"{unit}: {state.active}, Result={state.result}",
                "Start request repeated too quickly.",
                fix=f"journalctl -u {unit} on {box} says why it ended; mend that, then fleetctl apply",
            )
        elif seen := storm(view, box, unit, told):
            yield _storm(box, unit, engine.id, seen, detail, facts.time)
        if detail.type == "notify" and engine.kind == "copy":
            by = [one.path for one in told.drop_ins if one.unit == unit and "Type" in one.keys]
            where = by[0] if by else state.fragment
            mend = f"rm {where}" if by else f"take Type=notify out of {where}"
            yield NOTIFY.found(
                box,
                unit,
                f"{unit} has Type=notify, and an engine never says READY=1: it does not become active",
                f"{where}: Type=notify; the unit is {state.active} ({state.sub})",
                fix=f"{mend}; systemctl daemon-reload; then fleetctl apply",
            )
        if log.collisions and state.active != "active":
            name = unit.removesuffix(".service")
            program = (engine.image or ("docker",))[0]
            yield COLLISION.found(
                box,
                unit,
                f"the name of the container of {unit} is still taken, and the engine cannot start",
                *log.collisions,
                fix=f"{program} rm -f {name} on {box}, then fleetctl apply; if it cannot be killed, reboot {box}",
            )


def _storm(box: str, unit: str, engine: str, seen: Storm, detail: Detail, now: float) -> Finding:
    limit = f"{detail.burst} starts in {seconds(detail.limit)}" if detail.limit and detail.burst else "none"
    over = now - seen.last > ONGOING * max(seen.every, 60.0)
    goes_on = ""
    if seen.endless and not over:
        goes_on = f"; its start limit ({limit}) is never reached at that rate: it loops for ever"
    last = time.strftime("%H:%M:%S", time.localtime(seen.last))
    return STORM.found(
        box,
        unit,
        f"{unit} was restarted {seen.count} times within an hour, every {seconds(seen.every)}{goes_on}",
        f"NRestarts since it was last started, the last at {last}; start limit: {limit}",
        fix=f"journalctl -u {unit} on {box} says why {engine} ends; mend that, then fleetctl apply"
        + (f" (systemctl stop {unit} ends the loop meanwhile)" if not over else ""),
        severity=Severity.WARNING if over else None,
    )
