"""Which process holds a lock, so that another one on the same machine can tell that it is gone."""

from __future__ import annotations

import os
from pathlib import Path


def myself() -> str:
    """This process as ``BOOT NAMESPACE PID@START``; empty where there is no /proc to tell it from."""
    place, started = _place(), _started(os.getpid())
    return f"{place} {os.getpid()}@{started}" if place and started else ""


def is_gone(owner: str) -> bool:
    """The process was of this machine, boot and PID namespace, and is no more. False when that is not certain."""
    place, _, process = owner.rpartition(" ")
    pid, _, started = process.partition("@")
    return bool(place) and place == _place() and pid.isdigit() and _started(int(pid)) != started


def _place() -> str:
    """The boot, and the namespace that process ids count in; containers on one machine have their own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process began, in clock ticks; empty when there is none or it has ended and is not reaped yet."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return ""
    return "" if words[0] in "ZX" else words[19]
