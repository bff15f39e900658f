"""Prometheus' own checks. Where there is no promtool it is taken out of Debian's package: no service is installed."""

from __future__ import annotations

import fcntl
import functools
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

KEPT = Path.home() / ".cache/fleetctl-promtool"


@functools.cache
def promtool() -> str:
    """Path of promtool; the test is skipped where it cannot be had."""
    if found := shutil.which("promtool"):
        return found
    KEPT.mkdir(parents=True, exist_ok=True)
    program = KEPT / "usr/bin/promtool"
    with (KEPT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists() and not _unpacked():
            pytest.skip("there is no promtool, and apt-get does not fetch Debian's package prometheus")
    return str(program)


def _unpacked() -> bool:
    """Fetch the package and unpack it beside everything; the lists of packages may have to come first."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return False
    fetch = ["apt-get", "download", "-qq", "prometheus"]
    if subprocess.run(fetch, cwd=KEPT, capture_output=True, check=False).returncode != 0:
        subprocess.run(["apt-get", "update", "-qq"], capture_output=True, check=False)
        if subprocess.run(fetch, cwd=KEPT, capture_output=True, check=False).returncode != 0:
            return False
    package = next(KEPT.glob("prometheus_*.deb"), None)
    return package is not None and subprocess.run(["dpkg", "-x", str(package), str(KEPT)], check=False).returncode == 0


def check(words: Sequence[str], text: str | None = None, cwd: Path | None = None) -> str:
    """What promtool says; the test fails where it is not content."""
    ran = subprocess.run([promtool(), *words], input=text, capture_output=True, text=True, cwd=cwd, check=False)
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said
    return said
