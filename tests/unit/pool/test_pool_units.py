"""How engines are started and stopped: what systemctl is asked, by a program of that name that notes it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fleetctl.pool.worker.units import Systemd, UnitError

SCRIPT = """#!/bin/sh
echo "$@" >>{notes}
case "$1" in
    show) echo {state} ;;
    start) echo "Unit is masked." >&2; exit {status} ;;
    stop) exec sleep {stop} ;;
esac
"""


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path / "systemctl"


def write(program: Path, state: str = "active", status: int = 0, stop: int = 0) -> Path:
    """The program, and where it notes what it was asked."""
    notes = program.with_name("notes")
    program.write_text(SCRIPT.format(notes=notes, state=state, status=status, stop=stop))
    program.chmod(0o755)
    return notes


def test_a_unit_is_started_without_waiting_for_its_load(systemctl: Path) -> None:
    notes = write(systemctl)
    asyncio.run(Systemd().start("m.service"))
    assert notes.read_text().splitlines() == ["reset-failed m.service", "start --no-block m.service"]


def test_a_unit_that_does_not_start_says_where_to_look(systemctl: Path) -> None:
    write(systemctl, status=1)
    with pytest.raises(UnitError, match=r"m\.service cannot be started: Unit is masked\.\n  journalctl -u m\.service"):
        asyncio.run(Systemd().start("m.service"))


def test_a_unit_that_does_not_stop_is_killed(systemctl: Path) -> None:
    notes = write(systemctl, stop=5)
    with pytest.raises(UnitError, match=r"did not stop within 0\.2 s, so it was killed"):
        asyncio.run(Systemd().stop("m.service", 0.2))
    assert notes.read_text().splitlines()[-1] == "kill --signal=SIGKILL m.service"


@pytest.mark.parametrize(
    ("state", "runs"),
    [("active", True), ("activating", True), ("inactive", False), ("failed", False), ("deactivating", False)],
)
def test_what_runs(systemctl: Path, state: str, runs: bool) -> None:
    write(systemctl, state)
    assert asyncio.run(Systemd().is_active("m.service")) is runs
