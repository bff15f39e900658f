"""What somebody else has on a box that acts on our units or is an engine: units, cron entries, containers. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from fleetctl.doctor.finding import Command, Finding, Remedy, Severity
from fleetctl.doctor.settled import Settled, ports_of
from fleetctl.doctor.units.acting import Harm, harms
from fleetctl.doctor.units.kinds import CONTAINER, CRON, FOREIGN, FOREIGN_ENGINE, USER_UNIT
from fleetctl.doctor.units.told import (
    AT_BOOT,
    UP,
    Act,
    Container,
    Cron,
    Foreign,
    Trigger,
    UnitsTold,
    UserUnit,
    name_to_enable,
)

EVIDENCE = 5
# Where an administrator has put a unit. What a package brought may do more than what is seen here.
OWN_FOLDERS = ("/etc/systemd/system/", "/run/systemd/system/", "/usr/local/lib/systemd/system/")
DEFAULT_PORT = 8000  # of vLLM


def foreign(view: Settled, box: str, told: UnitsTold) -> Iterator[Finding]:
    """Findings about everything on a box that is not fleetctl's. Where it has no engine others may have theirs."""
    if view.scene.live.layout is None:
        return
    for unit in told.foreign:
        if unit.awake:
            yield from _unit(view, box, unit)
    for entry in told.cron:
        yield from _cron(view, box, entry)
    for one in told.user:
        if one.enabled:
            yield from _user(view, box, one)
    for container in told.containers:
        if container.policy not in ("", "no", "never") and _has_engine(view, box):
            yield _container(view, box, container)


def _has_engine(view: Settled, box: str) -> bool:
    return bool(view.scene.live.ranks_on(box))


def _lines(found: list[Harm]) -> list[str]:
    return [f"{harm.act.where}: {harm.act.line}" for harm in found[:EVIDENCE]]


def _unit(view: Settled, box: str, unit: Foreign) -> Iterator[Finding]:
    found = harms(view, box, unit.acts)
    awake = [name for name, one in unit.triggers.items() if one.awake]
    how = f"{unit.name} is {unit.active} and {unit.enabled}" + (f", started by {', '.join(awake)}" if awake else "")
    do, undo = off(unit)
    remedy = Remedy(do, undo) if unit.fragment.startswith(OWN_FOLDERS) else None
    names = " ".join([*awake, unit.name])
    if found:
        yield FOREIGN.found(
            box,
            unit.name,
            f"{unit.name} {'; '.join(harm.says for harm in found[:3])}",
            how,
            *_lines(found),
            fix=f"{'; '.join(shlex.join(words) for words in do)}; or list {names} under superseded: in fleet.yaml, "
            "then fleetctl apply",
            remedy=None if found[0].severity is Severity.NOTE else remedy,
            severity=found[0].severity,
        )
    elif unit.engine and _has_engine(view, box):
        port = _port(unit.engine)
        clash = port in ports_of(view.scene.live, box)
        yield FOREIGN_ENGINE.found(
            box,
            unit.name,
            f"{unit.name} starts an engine that is not fleetctl's" + (f" on our port {port}" if clash else ""),
            how,
            unit.engine,
            fix=f"list {names} under superseded: in fleet.yaml for {box}, then fleetctl apply, if it shall go; raise "
            f"reserve: of {box} by what it takes if it shall stay",
            remedy=remedy if clash else None,
            severity=Severity.ERROR if clash else None,
        )


def _port(line: str) -> int:
    found = re.search(r"--port[= ](\d+)", line)
    return int(found[1]) if found else DEFAULT_PORT


def off(unit: Foreign) -> tuple[tuple[Command, ...], tuple[Command, ...]]:
    """Commands that turn a foreign unit and what starts it off, and those that give all back as it was."""
    awake = {name: one for name, one in unit.triggers.items() if one.awake}
    awake[unit.name] = Trigger(active=unit.active, enabled=unit.enabled, file=unit.file)
    do: list[Command] = []
    for word, until in (("enabled", ()), ("enabled-runtime", ("--runtime",))):
        if names := [name for name, one in awake.items() if one.enabled == word]:
            do.append(("systemctl", "disable", *until, "--now", *names))
    if names := [name for name, one in awake.items() if one.enabled not in AT_BOOT and one.active in UP]:
        do.append(("systemctl", "stop", *names))
    undo: list[Command] = []
    for name, one in awake.items():
        if one.enabled in AT_BOOT:
            until = ("--runtime",) if one.enabled == "enabled-runtime" else ()
            undo.append(("systemctl", "enable", *until, name_to_enable(name, one.file)))
        if one.active in UP:
            undo.append(("systemctl", "start", "--no-block", name))
    return tuple(do), tuple(undo)


def _cron(view: Settled, box: str, entry: Cron) -> Iterator[Finding]:
    found = harms(view, box, entry.acts)
    if not found and not (entry.engine and _has_engine(view, box)):
        return
    where = f"{entry.file}:{entry.number}" if entry.number else entry.file
    says = "; ".join(harm.says for harm in found[:3]) or "starts an engine that is not fleetctl's"
    yield CRON.found(
        box,
        where,
        f"{where} {says}",
        f"{where}: {entry.line}",
        *(f"{harm.act.where}: {harm.act.line}" for harm in found[:EVIDENCE] if harm.act.where != entry.file),
        fix=f"sed -i '{entry.number}s/^/#/' {shlex.quote(entry.file)}" if entry.number else f"chmod -x {entry.file}",
        severity=found[0].severity if found else None,
    )


def _user(view: Settled, box: str, unit: UserUnit) -> Iterator[Finding]:
    acts: tuple[Act, ...] = unit.acts
    found = harms(view, box, acts)
    if not found and not (unit.engine and _has_engine(view, box)):
        return
    whose = f"of {unit.user}" if unit.user else "of every user"
    says = "; ".join(harm.says for harm in found[:3]) or "starts an engine that is not fleetctl's"
    stop = f"systemctl --user --machine={unit.user}@ disable --now {unit.name}"
    yield USER_UNIT.found(
        box,
        unit.file,
        f"the user service {unit.name} {whose} {says}",
        *(_lines(found) or [f"{unit.file}: {unit.engine}"]),
        "it runs without a login, for its user lingers" if unit.lingers else "it runs while its user is logged in",
        fix=stop if unit.user else f"systemctl --global disable {unit.name}, and stop it in each user's session",
        severity=found[0].severity if found else None,
    )


def _container(view: Settled, box: str, one: Container) -> Finding:
    policy = f"{one.policy}:{one.retries}" if one.policy == "on-failure" and one.retries else one.policy
    what = [
        *(["is an engine that is not fleetctl's"] if one.engine else []),
        *([f"has our port {', '.join(map(str, one.ports))}"] if one.ports else []),
    ] or ["has the name of a container of ours"]
    do: Command = (one.program, "update", "--restart=no", one.name)
    undo: Command = (one.program, "update", f"--restart={policy}", one.name)
    fix = shlex.join(do) if one.updates else f"{one.program} rm -f {one.name}, and make it again without --restart"
    return CONTAINER.found(
        box,
        f"container {one.name}",
        f"the container {one.name} of {one.program} comes back by itself and {' and '.join(what)}",
        f"{one.name} ({one.image}): {one.status}, RestartPolicy={policy}",
        fix=fix,
        remedy=Remedy((do,), (undo,)) if one.updates else None,
        severity=Severity.ERROR if one.ports else None,
    )
