"""Units of fleetctl against the live layout: what runs, what starts at boot, and what was replaced. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from fleetctl.doctor.finding import Finding, Remedy, Severity
from fleetctl.doctor.settled import Settled, conflicts
from fleetctl.doctor.units.faring import given_up, storm
from fleetctl.doctor.units.foreign import off
from fleetctl.doctor.units.kinds import (
    NOT_AT_BOOT,
    NOT_RUNNING,
    OTHER_AT_BOOT,
    OTHER_GENERATION,
    OTHER_RUNS,
    SEVERAL_AT_BOOT,
    SUPERSEDED_BACK,
)
from fleetctl.doctor.units.told import Foreign, Replaced, UnitsTold
from fleetctl.facts.types import UnitFacts
from fleetctl.plan.difference import PROXY_UNIT, VRRP_UNIT
from fleetctl.render.names import FIREWALL_UNIT, GUARD_UNIT, UNIT_FOLDER
from fleetctl.render.release import Engine, Rank

APPLY = "fleetctl apply"


def seen(unit: str, state: UnitFacts) -> str:
    """What systemd says of a unit, in its words."""
    result = f", Result={state.result}" if state.result not in ("", "success") else ""
    return f"{unit}: {state.active} ({state.sub}), {state.enabled or 'not enabled'}{result}"


def toggle(enable: bool, state: UnitFacts, unit: str) -> tuple[str, ...]:
    """The command that enables or disables a unit, until the next boot where it is enabled so."""
    runtime = ("--runtime",) if state.enabled == "enabled-runtime" else ()
    return ("systemctl", "enable" if enable else "disable", *runtime, unit)


def at_boot(view: Settled, box: str) -> Iterator[Finding]:
    """What starts at the next boot and should not, and the reverse."""
    facts, lacks = view.facts(box), view.lacks(box)
    enabled = {name for name in facts.ours if facts.units[name].at_boot}
    for unit in lacks.disable:
        if unit in view.unseen:
            continue
        state = facts.units[unit]
        against = sorted(
            other for other in enabled - {unit} if other in conflicts(view.scene, box, unit) and other in lacks.at_boot
        )
        remedy = Remedy((toggle(False, state, unit),), (toggle(True, state, unit),))
        evidence = [seen(name, facts.units[name]) for name in [unit, *against]]
        if against:
            yield SEVERAL_AT_BOOT.found(
                box,
                unit,
                f"{unit} starts at boot beside {', '.join(against)}, and each stops the other",
                *evidence,
                fix=f"systemctl disable {unit}",
                remedy=remedy,
            )
        else:
            yield OTHER_AT_BOOT.found(
                box,
                unit,
                f"{unit} starts at boot and belongs to another layout than {view.part.layout or 'none'}",
                *evidence,
                fix=f"systemctl disable {unit}",
                remedy=remedy,
            )
    for unit in lacks.enable:
        state = facts.units.get(unit, UnitFacts(load="not-found", active="inactive", sub="dead", enabled=""))
        if unit == FIREWALL_UNIT or f"{UNIT_FOLDER}/{unit}" in facts.drift or state.load == "not-found":
            continue  # the firewall, and a file that is missing, are other findings
        off = state.load == "loaded" and state.enabled == "disabled"
        undo = ("systemctl", "disable", unit)
        unmask = "" if off else f"systemctl unmask {unit} && " if state.load == "masked" else ""
        yield NOT_AT_BOOT.found(
            box,
            unit,
            f"{unit} does not start after a reboot of {box}",
            seen(unit, state),
            fix=f"{unmask}systemctl enable {unit}",
            remedy=Remedy((("systemctl", "enable", unit),), (undo,)) if off else None,
        )


def running(view: Settled, box: str, told: UnitsTold | None) -> Iterator[Finding]:
    """What runs and should not, and the reverse."""
    facts, lacks = view.facts(box), view.lacks(box)
    for unit in lacks.stop:
        if unit not in view.ranks(box) and unit not in view.unseen and not facts.units[unit].down:
            yield OTHER_RUNS.found(
                box,
                unit,
                f"{unit} runs, and the layout {view.part.layout or 'before fleetctl'} has no such unit on {box}",
                seen(unit, facts.units[unit]),
                fix=f"{APPLY} stops it",
            )
    for unit, (engine, rank) in view.ranks(box).items():
        if not (storm(view, box, unit, told) or given_up(view, box, unit, told)):
            yield from _engine(view, box, unit, engine, rank)
    yield from _services(view, box)


def _engine(view: Settled, box: str, unit: str, engine: Engine, rank: Rank) -> Iterator[Finding]:
    facts = view.facts(box)
    state = facts.units.get(unit)
    if state is None or state.load == "not-found":
        says, evidence = f"{unit} is not there: {engine.id} cannot run on {box}", f"{unit}: not-found"
    elif state.down:
        says, evidence = f"{unit} is {state.active}: {engine.id} does not run on {box}", seen(unit, state)
    elif state.sub == "auto-restart":
        says, evidence = f"{unit} has ended and is about to be started again", seen(unit, state)
    elif state.active == "active" and state.engine != view.build(engine, rank):
        says = f"{unit} runs another build than the layout {view.part.layout} wants"
        evidence = f"FLEETCTL_ENGINE={state.engine or ''}, wanted {view.build(engine, rank)}"
    else:
        return
    fix = f"{APPLY} starts it; journalctl -u {unit} on {box} says why it ended"
    lines, severity = [evidence], None
    if why := facts.guard_out.get(unit):
        lines.append(f"the guard has stopped it: {why}")
        fix, severity = f"fleetctl guard status says when it starts {unit} again", Severity.WARNING
    yield NOT_RUNNING.found(box, unit, says, *lines, fix=fix, severity=severity)


def _services(view: Settled, box: str) -> Iterator[Finding]:
    """Proxy, floating address and guard."""
    proxy, facts = view.part.proxy, view.facts(box)
    wanted = {}
    if proxy and box in proxy.boxes:
        wanted[PROXY_UNIT] = "the proxy"
        if proxy.floating:
            wanted[VRRP_UNIT] = f"the way of {proxy.floating.address} to this box"
    if view.lacks(box).start_guard and not view.lacks(box).stop_guard:
        wanted[GUARD_UNIT] = "the guard"
    for unit, what in wanted.items():
        state = facts.units.get(unit)
        if state is None or state.down:
            yield NOT_RUNNING.found(
                box,
                unit,
                f"{unit} does not run: {what} is down on {box}",
                seen(unit, state) if state else f"{unit}: not-found",
                fix=f"{APPLY} starts it; journalctl -u {unit} on {box} says why it ended",
            )


def generation(view: Settled, box: str) -> Iterator[Finding]:
    """A box of the layout that was left behind."""
    seen_there, fleets = view.facts(box).generation, view.generation
    if box in view.scene.live.boxes() and seen_there != fleets:
        yield OTHER_GENERATION.found(
            box,
            "/etc/fleetctl/current",
            f"{box} is in generation {seen_there}, the fleet in {fleets}",
            f"/etc/fleetctl/current: {seen_there or 'nothing'}",
            fix=f"{APPLY} brings {box} into generation {fleets}",
        )


def superseded(view: Settled, box: str, told: UnitsTold | None) -> Iterator[Finding]:
    """Units that were replaced and are back. Their timers go with them."""
    facts = view.facts(box)
    for unit in view.lacks(box).supersede:
        state = facts.units[unit]
        known = (told.replaced.get(unit) if told else None) or Replaced()
        given = {"active": state.active, "enabled": state.enabled, "file": known.file, "triggers": known.triggers}
        do, undo = off(Foreign(name=unit, **given))
        by = [name for name, one in known.triggers.items() if one.awake]
        yield SUPERSEDED_BACK.found(
            box,
            unit,
            f"{unit}, which fleetctl replaced, is {state.active} and {state.enabled} again",
            seen(unit, state),
            *([f"started by {', '.join(by)}"] if by else []),
            fix="; ".join(map(shlex.join, do)) or f"systemctl stop {unit}",
            remedy=Remedy(do, undo) if do else None,
        )
