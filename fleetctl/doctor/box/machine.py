"""Disk room, inodes, open files, and the GPU as a device."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fleetctl.doctor.box.told import BoxTold, Disk
from fleetctl.doctor.finding import Finding, Kind, Severity
from fleetctl.doctor.scene import Scene
from fleetctl.plan.refusals import ROOM
from fleetctl.spec.units import gib

LITTLE = 20 * 2**30
"""Bytes: with more than that free no file system counts as nearly full, whatever part of it that is."""
PART = 0.05
VERY_LITTLE = 2**30
FILES = 4096
"""Open files that an engine with a few hundred requests needs; vLLM raises its soft limit up to the hard one."""

DISK = Kind(
    "B03",
    Severity.WARNING,
    "a disk is nearly full",
    "file systems of the models, of container images, of the journal and of fleetctl with less than a twentieth and "
    "less than 20 GiB free, or less than 1 GiB; an error where fleetctl itself has no room for one more generation",
    "An image or a model that is fetched stops half-way, the journal forgets, and with a full disk a move fails.",
    "make room: old images, old models, old journals",
    "statvfs(3)",
)
INODES = Kind(
    "B04",
    Severity.WARNING,
    "a disk has nearly no inodes left",
    "file systems with less than a twentieth of their inodes free",
    "No file can be made on it, however many bytes are free.",
    "remove what has many small files: old images, caches",
    "statvfs(3)",
)
OPEN_FILES = Kind(
    "B05",
    Severity.WARNING,
    "an engine may open few files",
    "processes of engines whose hard limit of open files, as they run, is below 4096",
    "Each request has a socket: at 1,024, which is systemd's default, connections are refused with "
    "`Too many open files`.",
    "fleetctl's units have LimitNOFILE=1048576; take the drop-in away that lowers it, or give a container --ulimit",
    "vLLM's warning on ulimit; /proc/PID/limits",
)
GPU_SILENT = Kind(
    "B06",
    Severity.ERROR,
    "the driver of the GPU does not work",
    "an nvidia-smi that fails, finds no GPU, or does not end",
    "No engine starts. `Driver/library version mismatch` means that the driver was upgraded and the box not booted "
    "since: what runs goes on, and does not come back.",
    "boot the box again",
    "nvidia-smi(1)",
)
THROTTLED = Kind(
    "B07",
    Severity.WARNING,
    "the GPU is held back by heat or power",
    "clocks of a GPU that are held down by its temperature, or by what the power supply gives, as nvidia-smi says",
    "One slow box makes a split slow as a whole, and of two copies one.",
    "air, dust, the right power supply",
    "nvidia-smi, clocks_event_reasons",
)
KINDS = (DISK, INODES, OPEN_FILES, GPU_SILENT, THROTTLED)
_OURS = ("/etc/fleetctl", "/var/lib/fleetctl")


def find(scene: Scene, box: str, told: BoxTold) -> Iterator[Finding]:
    """Findings of one box."""
    for disk in told.disks:
        yield from _room(box, disk)
    yield from _open_files(box, told)
    yield from _gpu(box, told)
    yield from _throttled(box, told)


def _room(box: str, disk: Disk) -> Iterator[Finding]:
    names = ", ".join(disk.paths[:4])
    seen = f"{names}: {gib(disk.free)} free of {gib(disk.size)}"
    little = disk.free < VERY_LITTLE or (disk.free < disk.size * PART and disk.free < LITTLE)
    if disk.size and little and not disk.read_only:
        full = disk.free < ROOM and any(path in _OURS for path in disk.paths)
        part = 100 * disk.free / disk.size
        yield DISK.found(
            box,
            disk.paths[-1],
            f"the disk of {names} has {gib(disk.free)} free ({part:.0f} %)",
            seen,
            fix=_make_room(box, disk),
            severity=Severity.ERROR if full else None,
        )
    if disk.inodes and not disk.read_only and disk.inodes_free < disk.inodes * PART:
        yield INODES.found(
            box,
            disk.paths[-1],
            f"the disk of {names} has {disk.inodes_free:,} of {disk.inodes:,} inodes free",
            seen,
            fix=f"on {box}: du --inodes -x {disk.paths[-1]} | sort -n | tail, says what has them",
        )


def _make_room(box: str, disk: Disk) -> str:
    """What is likely to help on this very file system."""
    ways = [f"du -xh --max-depth=1 {disk.paths[-1]} | sort -h | tail"]
    if any(path in ("/", "/var/lib/docker") for path in disk.paths):
        ways.append("docker image prune (where there is docker)")
    if any(path in ("/", "/var/log/journal") for path in disk.paths):
        ways.append("journalctl --vacuum-size=1G")
    return f"on {box}: {'; '.join(ways)}"


def _open_files(box: str, told: BoxTold) -> Iterator[Finding]:
    units: dict[str, tuple[int, str]] = {}
    for limit in told.limits:
        words = limit.line.split()
        hard = words[4] if len(words) > 4 else ""
        name = limit.unit or f"pid {limit.pid}"
        if hard.isdecimal() and int(hard) < min(FILES, units.get(name, (FILES, ""))[0]):
            units[name] = (int(hard), f"/proc/{limit.pid}/limits ({limit.comm}): {' '.join(words)}")
    for name, (most, line) in units.items():
        yield OPEN_FILES.found(
            box,
            name,
            f"{name} may have {most:,} files open; vLLM wants 65,535",
            line,
            fix=f"on {box}: systemctl show -p LimitNOFILE,DropInPaths {name}; fleetctl's unit says 1048576. For a "
            f'container write options: ["--ulimit=nofile=1048576"] under launch:. Then `fleetctl restart {box}`',
        )


def _gpu(box: str, told: BoxTold) -> Iterator[Finding]:
    said = told.gpus
    if said is None:
        return
    words = (said.err.strip() or said.out.strip() or "nothing").splitlines()[:3]
    if said.rc == 0 and (told.gpu_list() or not re.search("No devices", said.out + said.err)):
        return
    mismatch = "version mismatch" in f"{said.err}{said.out}"
    what = "the driver was upgraded and the box not booted since" if mismatch else f"nvidia-smi says: {words[0]}"
    yield GPU_SILENT.found(
        box,
        "nvidia-smi",
        f"the driver of {box}'s GPU does not work: {what}",
        *words,
        *(told.driver or "").splitlines()[:1],
        fix=f"`fleetctl drain {box}`; systemctl reboot on {box}; `fleetctl undrain {box}`"
        + ("" if mismatch else f"; if it stays: journalctl -k -g NVRM on {box}"),
    )


def _throttled(box: str, told: BoxTold) -> Iterator[Finding]:
    said = told.throttled
    for line in said.out.splitlines() if said is not None and said.rc == 0 else ():
        row = [field.strip() for field in line.split(",")]
        names = ("its temperature", "its temperature", "the power supply")
        reasons = [name for name, word in zip(names, row[1:], strict=False) if word == "Active"]
        if reasons:
            yield THROTTLED.found(
                box,
                f"GPU {row[0]}",
                f"the clocks of GPU {row[0]} are held down by {' and '.join(dict.fromkeys(reasons))}",
                f"hw_thermal_slowdown, sw_thermal_slowdown, hw_power_brake_slowdown: {', '.join(row[1:])}",
                fix=f"on {box}: nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER; see that air gets in, and that the "
                "power supply is the one that came with it",
            )
