"""Memory that runs short now, or did, and who would end something then: daemons beside the guard, protection."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fleetctl.doctor.finding import Finding, Kind, Remedy, Severity
from fleetctl.doctor.memory.told import MemoryTold
from fleetctl.doctor.scene import Scene
from fleetctl.plan.difference import has_guard
from fleetctl.plan.others import left_for_others, taken_on
from fleetctl.plan.refusals import others_on_guard
from fleetctl.render.guard import DROP_IN, SLICE, memory_low
from fleetctl.render.names import UNIT_FOLDER
from fleetctl.spec.units import gib

STANDING = 5.0
"""Percent of five minutes in which all tasks stood still for want of memory."""
EARLYOOM_MARK = 10.0
"""Percent of the memory below which earlyoom begins, when nothing else is said."""

RAN_SHORT = Kind(
    "M08",
    Severity.WARNING,
    "memory ran short",
    "available memory that fell below half of what the guard acts at (`memory_low:`), by its own notes of 14 days",
    "There the guard has no time left to let requests finish, and the next peak may be quicker than it.",
    "raise `reserve:`; `fleetctl guard status` says when it was",
    "the guard's notes under /var/lib/fleetctl/guard",
)
PRESSURE = Kind(
    "M09",
    Severity.WARNING,
    "tasks stand still for want of memory",
    "memory pressure: `full avg300` of 5 percent or more in /proc/pressure/memory",
    "The box spends its time on getting memory back. Engines get slow, and SSH is next.",
    "see what takes the memory, and raise `reserve:`",
    "Linux documentation, accounting/psi",
)
OTHER_DAEMON = Kind(
    "M16",
    Severity.WARNING,
    "another service ends processes when memory is short",
    "earlyoom or nohang beside a guard, or with a mark that engines and services reach together; systemd-oomd where it "
    "may end engines",
    "It ends the process that it likes least, which is the engine, without taking it out of the proxy before.",
    "disable it, or give it a mark below half of `memory_low:`",
    "earlyoom(1), systemd-oomd.service(8)",
)
UNPROTECTED = Kind(
    "M17",
    Severity.WARNING,
    "a service that should keep its memory does not",
    "services under `guard: protect:` whose MemoryMin= is not in force, that do not exist, or that are not in "
    "system.slice",
    "Without MemoryMin= the kernel takes the memory of a database as readily as anything else, and above it a slice "
    "has to keep as much, or it counts for nothing.",
    "`fleetctl apply` writes the drop-ins",
    "systemd.resource-control(5), MemoryMin=",
)
KINDS = (RAN_SHORT, PRESSURE, OTHER_DAEMON, UNPROTECTED)


def find(scene: Scene, box: str, told: MemoryTold) -> Iterator[Finding]:
    """Findings of one box."""
    yield from _lowest(scene, box)
    yield from _pressure(box, told)
    yield from _daemons(scene, box, told)
    yield from _unprotected(scene, box, told)


def _lowest(scene: Scene, box: str) -> Iterator[Finding]:
    others, guard = scene.observed[box].others, scene.fleet.guard
    if guard is None or others is None or others.lowest is None or not others.measured:
        return
    here = scene.fleet.boxes[box]
    mark = memory_low(guard, here.reserve)
    if others.lowest < mark // 2:
        yield RAN_SHORT.found(
            box,
            "fleetctl-guard.service",
            f"available memory fell to {gib(others.lowest)}, and the guard acts below {gib(mark)}",
            f"/var/lib/fleetctl/guard/services.json: lowest {others.lowest} bytes",
            fix=f"`fleetctl guard status` says when; write a larger reserve: under {box} in fleet.yaml (it is "
            f"{gib(here.reserve)}), then `fleetctl apply`",
        )


def standing(pressure: str | None) -> float | None:
    """Percent of the last five minutes in which all tasks stood still; None: this kernel does not tell."""
    found = re.search(r"^full .*?avg300=(\d{1,3}(?:\.\d{1,4})?)\b", pressure or "", re.MULTILINE)
    return float(found[1]) if found else None


def _pressure(box: str, told: MemoryTold) -> Iterator[Finding]:
    stood = standing(told.pressure)
    if stood is None or stood < STANDING or told.container:
        return
    yield PRESSURE.found(
        box,
        "/proc/pressure/memory",
        f"all tasks stood still for {stood:.0f} % of the last five minutes for want of memory",
        *(told.pressure or "").splitlines()[:2],
        f"MemAvailable {gib(told.meminfo.get('MemAvailable', 0))}",
        fix=f"on {box}: systemd-cgtop -m says who takes it; stop that, or write a larger reserve: under {box} in "
        "fleet.yaml, then `fleetctl apply`",
    )


def mark_of(words: tuple[str, ...], total: int) -> int:
    """Available bytes below which an earlyoom with this command line begins; with both -m and -M the lower counts."""
    marks = []
    for number, word in enumerate(words):
        if not word.startswith(("-m", "-M")):
            continue
        value = word[2:] or (words[number + 1] if number + 1 < len(words) else "")
        first = re.match(r"=?(\d{1,12}(?:\.\d{1,6})?)", value)
        if first:
            marks.append(int(float(first[1]) * (total / 100 if word.startswith("-m") else 1024)))
    return min(marks, default=int(EARLYOOM_MARK * total / 100))


def _daemons(scene: Scene, box: str, told: MemoryTold) -> Iterator[Finding]:
    facts, live = scene.observed[box], scene.live
    budget = next((budget for budget in live.budgets if budget.box == box), None)
    if budget is None or not live.ranks_on(box):
        return
    total = facts.memory["total"]
    left = left_for_others(live, budget)
    taken = taken_on(live, box, facts.superseded, facts.others).together if facts.others is not None else 0
    guarded = {text.split()[0]: text for text in others_on_guard(facts)} if has_guard(live, box) else {}
    for name in ("earlyoom", "nohang"):
        if name not in told.daemons:
            continue
        words, unit = told.daemons[name], f"{name}.service"
        mark = mark_of(words, total) if name == "earlyoom" else int(EARLYOOM_MARK * total / 100)
        says = guarded.get(unit)
        if says is None and left - taken < mark:
            swap = "" if told.meminfo.get("SwapTotal", 0) == 0 else " and the swap is nearly used up"
            says = (
                f"{name} ends a process when less than {gib(mark)} are available{swap}; engines leave {gib(left)}, of "
                f"which other services take {gib(taken)}"
            )
        if says is not None:
            yield OTHER_DAEMON.found(
                box,
                unit,
                says.split(": it kills")[0] if unit in guarded else says,
                f"{name}: {' '.join(words)[:200]} (begins below {gib(mark)})",
                fix=f"on {box}: systemctl disable --now {unit}"
                + ("" if guarded else "; write guard: {} in fleet.yaml in its place, then `fleetctl apply`"),
                # With a guard nothing is lost; without one this is all that the box has.
                remedy=Remedy((("systemctl", "disable", "--now", unit),), (("systemctl", "enable", "--now", unit),))
                if unit in guarded
                else None,
            )
    if "systemd-oomd" in told.daemons:
        yield from _oomd(scene, box, told)


def _oomd(scene: Scene, box: str, told: MemoryTold) -> Iterator[Finding]:
    """systemd-oomd ends nothing but units below those that say so, at their pressure."""
    units = [rank.unit for _, rank in scene.live.ranks_on(box)]
    for unit in (*units, SLICE):
        if told.unit(unit).get("ManagedOOMMemoryPressure") == "kill":
            yield OTHER_DAEMON.found(
                box,
                unit,
                f"systemd-oomd may end engines: {unit} has ManagedOOMMemoryPressure=kill",
                f"{unit}: ManagedOOMMemoryPressure=kill",
                fix=f"on {box}: systemctl set-property {unit} ManagedOOMMemoryPressure=auto",
            )


def _unprotected(scene: Scene, box: str, told: MemoryTold) -> Iterator[Finding]:
    guard = scene.fleet.guard
    kept = guard.protects_on(box) if guard is not None and scene.live.ranks_on(box) else {}
    if not kept or not told.units:
        return
    apply = "`fleetctl apply` writes it"
    for unit, size in sorted(kept.items()):
        shown, has = told.unit(unit), told.size(unit, "MemoryMin")
        path = f"{UNIT_FOLDER}/{unit}.d/{DROP_IN}"
        if shown.get("LoadState") == "not-found":
            yield UNPROTECTED.found(
                box,
                unit,
                f"guard: protect: names {unit}, and {box} has no such service",
                f"{unit}: LoadState=not-found",
                fix=f"correct the name in fleet.yaml (systemctl list-units --type=service on {box}), or write boxes: "
                "with those that have it",
            )
        elif shown and shown.get("MemoryMin") != "infinity" and (has or 0) < size:
            yield UNPROTECTED.found(
                box,
                unit,
                f"{unit} should keep {gib(size)} and keeps {gib(has or 0)}",
                f"{unit}: MemoryMin={shown.get('MemoryMin', '')} ({path} should say {size})",
                fix=f"{apply}; if it is there: systemctl daemon-reload on {box}",
            )
        elif shown.get("Slice") not in (SLICE, None, ""):
            yield UNPROTECTED.found(
                box,
                unit,
                f"{unit} is in {shown['Slice']}, above which nothing keeps its memory",
                f"{unit}: Slice={shown['Slice']}",
                fix=f"on {box}: systemctl set-property {shown['Slice']} MemoryMin={size}",
            )
    above, shown = sum(kept.values()), told.unit(SLICE)
    if shown and shown.get("MemoryMin") != "infinity" and (told.size(SLICE, "MemoryMin") or 0) < above:
        yield UNPROTECTED.found(
            box,
            SLICE,
            f"{SLICE} keeps {gib(told.size(SLICE, 'MemoryMin') or 0)}, and the services in it should keep {gib(above)}",
            f"{SLICE}: MemoryMin={shown.get('MemoryMin', '')}",
            fix=f"{apply}; if it is there: systemctl daemon-reload on {box}",
        )
    if not told.unified_groups and not told.container:
        yield UNPROTECTED.found(
            box,
            "/sys/fs/cgroup",
            f"MemoryMin= counts for nothing on {box}: its control groups are of version 1",
            "there is no /sys/fs/cgroup/cgroup.controllers",
            fix=f"boot {box} with systemd.unified_cgroup_hierarchy=1",
        )
