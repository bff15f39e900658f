"""What was ended for want of memory, and what the driver of the GPU did not get, by the journal of the last week."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fleetctl.doctor.finding import Finding, Kind, Severity
from fleetctl.doctor.memory.told import Line, MemoryTold
from fleetctl.doctor.scene import Scene
from fleetctl.spec.units import gib

DAY = 86_400.0
SAME = 60.0
"""Seconds within which two reports on a unit are of one event."""

KILLED = Kind(
    "M13",
    Severity.WARNING,
    "something was ended for want of memory",
    "processes that the kernel, systemd-oomd, earlyoom or nohang ended within a week because memory was short; a note "
    "when the last time is more than a day ago, or when the service only reached a limit of its own",
    "It will happen again with the next peak. What is hit is seldom what took the memory.",
    "raise `reserve:`; with `guard:` an engine leaves the proxy and stops before it comes to that",
    "the kernel's oom-kill lines, systemd's OOMPolicy=",
)
DRIVER_SHORT = Kind(
    "M14",
    Severity.WARNING,
    "the driver of the GPU got no memory",
    "NV_ERR_NO_MEMORY in the kernel's journal of a week; a note when the last time is more than a day ago",
    "On boxes whose GPU shares the memory this is what comes before the box freezes: no process is ended, SSH stops "
    "answering, and only the plug helps. MemAvailable may look well at that moment.",
    "raise `reserve:`, and `page_cache: drop`; lower --max-num-batched-tokens when it is at a start",
    "reports of GB10 boxes: NVRM: … Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from _memdescAllocInternal",
)
KINDS = (KILLED, DRIVER_SHORT)

_KERNEL = re.compile(r"kernel: .*?(Memory cgroup out|Out) of memory: Killed process (\d{1,9}) \((.*?)\)", re.IGNORECASE)
_WHERE = re.compile(r"kernel: .*?oom-kill:constraint=([A-Z_]+),.*?task_memcg=(\S*?),task=(.*?),pid=(\d{1,9})")
_RSS = re.compile(r"anon-rss:(\d{1,15})kB")
_SYSTEMD = re.compile(
    r"systemd\[\d+\]: (\S+): (?:A process of this unit has been killed by the OOM|Failed with result 'oom-kill')"
)
_EARLYOOM = re.compile(r"(earlyoom|nohang)\S*: .*?SIG(?:TERM|KILL) to.*? (\d{1,9})\b[^\"]*\"([^\"]*)\"")
_OOMD = re.compile(r"systemd-oomd\S*: Killed (\S+) due to")


@dataclass(frozen=True)
class Death:
    """Something that was ended: by whom, when (epoch seconds), and the line that says so."""

    at: float
    who: str
    """The unit where it is known, else the process."""
    by: str
    line: str
    where: str = ""
    """What the kernel says of the control groups, in a line of its own."""
    own_limit: bool = False
    """It reached the limit of a control group, and memory was not short."""
    size: int = 0
    """Bytes that it had; 0: not known."""


def deaths(lines: Iterable[Line]) -> list[Death]:
    """What was ended, oldest first; what two of them report is told once."""
    ordered = sorted(lines, key=lambda line: line.at)
    where = {
        found[4]: (found[1], unit_in(found[2]), line.text) for line in ordered if (found := _WHERE.search(line.text))
    }
    known: list[Death] = []
    for line in ordered:
        if found := _KERNEL.search(line.text):
            constraint, unit, said = where.get(found[2], ("", "", ""))
            rss = _RSS.search(line.text)
            own = constraint == "CONSTRAINT_MEMCG" or found[1].lower() != "out"
            size = int(rss[1]) * 1024 if rss else 0
            who = unit or f"{found[3]} (pid {found[2]})"
            known.append(Death(line.at, who, "the kernel", line.text, said, own, size))
        elif found := _EARLYOOM.search(line.text):
            known.append(Death(line.at, f"{found[3]} (pid {found[2]})", found[1], line.text))
        elif found := _OOMD.search(line.text):
            known.append(Death(line.at, unit_in(found[1]) or found[1], "systemd-oomd", line.text))
    for line in ordered:
        found = _SYSTEMD.search(line.text)
        if found and not any(one.who == found[1] and abs(one.at - line.at) < SAME for one in known):
            known.append(Death(line.at, found[1], "the kernel (systemd saw it)", line.text))
    # SIGTERM and SIGKILL for one process are one death.
    once: dict[tuple[str, int], Death] = {}
    for one in sorted(known, key=lambda death: death.at):
        once.setdefault((one.who, int(one.at // SAME)), one)
    return list(once.values())


def unit_in(group: str) -> str:
    """The service or scope that a control group belongs to; empty when it is in none."""
    parts = [part for part in group.split("/") if part.endswith((".service", ".scope"))]
    return parts[-1] if parts else ""


def find(scene: Scene, box: str, told: MemoryTold) -> Iterator[Finding]:
    """Findings of one box."""
    groups: dict[str, list[Death]] = {}
    for one in deaths(told.journal.killed.lines):
        groups.setdefault(re.sub(r" \(pid \d+\)$", "", one.who), []).append(one)
    for who, died in groups.items():
        yield _killed(scene, box, told, who, died)
    no_memory = told.journal.no_memory
    if no_memory.count and no_memory.lines:
        last = max(line.at for line in no_memory.lines)
        times = f"{no_memory.count} time{'' if no_memory.count == 1 else 's'}"
        yield DRIVER_SHORT.found(
            box,
            "kernel",
            f"the driver of the GPU got no memory {times} within a week, last on {when(last)}",
            *(line.text for line in no_memory.lines[:2]),
            fix=_more_reserve(scene, box) + f"; write page_cache: drop under {box} too; and `guard: {{}}`, if there is "
            "none, stops the engine before it comes to that",
            severity=_age(told, last),
        )


def _killed(scene: Scene, box: str, told: MemoryTold, who: str, died: list[Death]) -> Finding:
    last = died[-1]
    times = "" if len(died) == 1 else f", the last of {len(died)} times within a week"
    ours = who.startswith("fleetctl-")
    how = "at the limit of its control group" if last.own_limit else "because memory was short"
    severity = Severity.NOTE if last.own_limit and not ours else _age(told, last.at)
    return KILLED.found(
        box,
        who,
        f"{who} was ended by {last.by} on {when(last.at)}, {how}{times}",
        *(f"{when(death.at)} {death.line}" for death in reversed(died[-3:])),
        *([last.where] if last.where else []),
        fix=_way_out(scene, box, who, last),
        severity=severity,
    )


def _way_out(scene: Scene, box: str, who: str, last: Death) -> str:
    ours = who.startswith("fleetctl-")
    if last.own_limit and ours:
        return (
            f"its limit is memory less reserve of {box} (systemctl show -p MemoryMax {who}): write a lower "
            "gpu_memory_utilization: for this box in the placement, or --max-num-batched-tokens; then `fleetctl apply`"
        )
    if last.own_limit:
        return f"on {box}: systemctl show -p MemoryMax {who}; systemctl set-property {who} MemoryMax=SIZE gives it more"
    if ours:
        more = "" if scene.fleet.guard else "; write guard: {} in fleet.yaml, so that it stops in order next time"
        return _more_reserve(scene, box) + more
    protect = ""
    if who.endswith(".service") and last.size:
        room = -(-last.size // 2**30)
        keep = f"{{unit: {who}, memory: {room}GiB, boxes: [{box}]}}"
        protect = f"; it had {gib(last.size)}, and keeps them with guard: {{protect: [{keep}]}}"
    return _more_reserve(scene, box) + protect


def _more_reserve(scene: Scene, box: str) -> str:
    reserve = gib(scene.fleet.boxes[box].reserve) if box in scene.fleet.boxes else "not known"
    return f"write a larger reserve: under {box} in fleet.yaml (it is {reserve}), then `fleetctl apply`"


def _age(told: MemoryTold, at: float) -> Severity:
    return Severity.WARNING if at > told.answered_at - DAY else Severity.NOTE


def when(at: float) -> str:
    """A time as people read it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
