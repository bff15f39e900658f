"""What the driver reported of the GPU itself: Xid lines in the kernel's journal of the last week."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fleetctl.doctor.finding import Finding, Kind, Severity
from fleetctl.doctor.memory.killed import DAY, when
from fleetctl.doctor.memory.told import Line, MemoryTold
from fleetctl.doctor.scene import Scene

XID = Kind(
    "M15",
    Severity.WARNING,
    "the driver reported a fault of the GPU",
    "`NVRM: Xid` in the kernel's journal of a week; an error when it is one of the hardware and of the last day, a "
    "note when a program can have caused it, or when it is older",
    "After some of them the GPU does nothing more until the box is booted again, and an engine hangs with /health "
    "answering 200. Others come from a program that was killed or went wrong, and mean nothing by themselves.",
    "drain the box and boot it again; when it comes back, look at the hardware",
    "NVIDIA's catalogue of Xid errors",
)
KINDS = (XID,)

OF_PROGRAMS = {
    13: "exception of the graphics engine, mostly a program's",
    31: "fault of an address, mostly a program's",
    43: "a program's work was stopped",
    45: "work was cleaned up, as after a kill or an error before it",
    69: "error of a class, mostly a program's",
}
OF_HARDWARE = {
    48: "double bit error of the memory",
    62: "the micro-controller halted",
    64: "a bad row of memory could not be remapped",
    74: "error of NVLink",
    79: "the GPU has fallen off the bus",
    92: "many single bit errors",
    94: "contained error of the memory",
    95: "uncontained error of the memory",
    119: "the GPU's own processor (GSP) does not answer",
    120: "error of the GPU's own processor (GSP)",
    140: "error of the memory that was not corrected",
    154: "the driver wants the GPU reset or the box booted again",
}
_XID = re.compile(r"NVRM: Xid \(([^)]{1,40})\): (\d{1,4}),")


def find(scene: Scene, box: str, told: MemoryTold) -> Iterator[Finding]:
    """Findings of one box: one for each number and GPU."""
    groups: dict[tuple[int, str], list[Line]] = {}
    for line in told.journal.xid.lines:
        found = _XID.search(line.text)
        if found:
            groups.setdefault((int(found[2]), found[1]), []).append(line)
    for (number, gpu), lines in sorted(groups.items()):
        last = max(lines, key=lambda line: line.at)
        word = OF_HARDWARE.get(number) or OF_PROGRAMS.get(number) or "see NVIDIA's catalogue"
        times = "once" if len(lines) == 1 else f"{len(lines)} times"
        yield XID.found(
            box,
            gpu,
            f"the driver reported Xid {number} ({word}) of {gpu} {times} within a week, last on {when(last.at)}",
            last.text,
            fix=_way_out(box, number),
            severity=_severity(number, recent=last.at > told.answered_at - DAY),
        )


def _severity(number: int, *, recent: bool) -> Severity:
    if not recent or number in OF_PROGRAMS:
        return Severity.NOTE
    return Severity.ERROR if number in OF_HARDWARE else Severity.WARNING


def _way_out(box: str, number: int) -> str:
    if number in OF_PROGRAMS:
        return f"see what ran on {box} then (journalctl there); it matters only if an engine hangs or it comes again"
    boot = f"fleetctl drain {box}; systemctl reboot on {box}; fleetctl undrain {box}"
    look = f"on {box}: nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT" if number in (48, 64, 92, 94, 95, 140) else ""
    return f"{boot}; {look or f'if it comes again: nvidia-bug-report.sh on {box}, for its maker'}"
