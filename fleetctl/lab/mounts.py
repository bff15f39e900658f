"""Mounts of this lab as the kernel lists them."""

from __future__ import annotations

import re
from pathlib import Path

from fleetctl.lab.command import run

_OCTAL = re.compile(r"\\([0-7]{3})")


def mount_lines() -> list[tuple[Path, str]]:
    """Every mount point seen by this process with its whole line from /proc/self/mounts."""
    found = []
    for line in Path("/proc/self/mounts").read_text(errors="surrogateescape").splitlines():
        point = _OCTAL.sub(lambda match: chr(int(match.group(1), 8)), line.split(" ")[1])
        found.append((Path(point), line))
    return found


def mounts_under(folder: Path) -> list[Path]:
    """Mount points at or below ``folder``, the latest first: the order in which they can be unmounted."""
    return [point for point, _ in reversed(mount_lines()) if point == folder or folder in point.parents]


def mounts_mentioning(folder: Path) -> list[Path]:
    """Mount points at, below, or built on ``folder`` (an overlay names its layers in its options)."""
    word = re.compile(re.escape(str(folder)) + r"(?![^/,: ])")
    return [point for point, line in mount_lines() if word.search(line)]


def unmount_under(folder: Path) -> None:
    """Unmount everything at or below ``folder``; lazily where something still holds it."""
    for point in mounts_under(folder):
        run(["umount", "--lazy", str(point)], doing=f"unmounting {point}")
