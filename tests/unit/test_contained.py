"""The script that runs a container in the foreground: it ends when the container does, whatever becomes of Podman."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "systemd" / "contained.py"


def start(tmp_path: Path, shell: str) -> subprocess.Popen[str]:
    """The script around a shell that stands for `podman run`; the container is a process of its own."""
    argv = [sys.executable, str(SCRIPT), str(tmp_path / "pid"), "sh", "-c", shell]
    return subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)


def wait_for(path: Path) -> int:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if path.exists() and path.read_text().strip():
            return int(path.read_text())
        time.sleep(0.02)
    raise AssertionError(f"{path} does not come")


@pytest.mark.parametrize("status", [0, 3])
def test_its_status_is_that_of_podman(tmp_path: Path, status: int) -> None:
    assert start(tmp_path, f"exit {status}").wait(20) == status


def test_a_signal_reaches_podman_and_the_pid_file_goes(tmp_path: Path) -> None:
    # The shell waits in the background, so that its trap runs at once.
    script = start(tmp_path, f"trap 'exit 7' TERM; sleep 60 & echo $! > {tmp_path}/pid; wait")
    container = wait_for(tmp_path / "pid")
    time.sleep(0.2)
    script.send_signal(signal.SIGTERM)
    assert script.wait(20) == 7
    assert not (tmp_path / "pid").exists()
    os.kill(container, signal.SIGKILL)


def test_a_container_whose_end_podman_misses_ends_it(tmp_path: Path) -> None:
    container = subprocess.Popen(["sleep", "60"])
    script = start(tmp_path, f"echo {container.pid} > {tmp_path}/pid; exec sleep 60")
    wait_for(tmp_path / "pid")
    time.sleep(1.5)
    container.kill()
    container.wait()
    assert script.wait(30) == 1
    assert script.stderr is not None
    assert "has ended and podman does not know" in script.stderr.read()
