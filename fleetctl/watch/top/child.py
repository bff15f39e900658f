"""A fleetctl command as a child of the screen: its output line by line."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

PROGRAM = (sys.executable, "-c", "from fleetctl.cli.main import main; main()")


class Child:
    """Runs ``fleetctl WORDS``. ``hear`` gets each line and ``ended`` the exit status, both in a thread of their own.

    It has no terminal and a session of its own: keys of the screen do not reach it.
    """

    def __init__(
        self,
        words: tuple[str, ...],
        hear: Callable[[str], object],
        ended: Callable[[int], object],
        program: tuple[str, ...] = PROGRAM,
    ) -> None:
        self._process = subprocess.Popen(
            [*program, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        self._hear, self._ended = hear, ended
        self._thread = threading.Thread(target=self._read, name="child", daemon=True)
        self._thread.start()

    def running(self) -> bool:
        """It has not ended."""
        return self._process.poll() is None

    def interrupt(self) -> None:
        """What Ctrl-C does to it: a move is undone, a log ends."""
        if self.running():
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGINT)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._hear(line.rstrip("\n"))
        self._ended(self._process.wait())
