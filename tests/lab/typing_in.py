"""An operator at a terminal: what is typed when which question is shown."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import time
from collections.abc import Mapping, Sequence


def typed(argv: list[str], env: Mapping[str, str], answers: Sequence[tuple[str, str]], limit: float) -> tuple[int, str]:
    """Run a command on a terminal, type each answer when its question shows; exit status and all that was shown."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(argv[0], argv, dict(env))
    shown, seen, left, end = "", 0, list(answers), time.monotonic() + limit
    try:
        while time.monotonic() < end:
            if not select.select([terminal], [], [], 1.0)[0]:
                continue
            try:
                data = os.read(terminal, 65536)
            except OSError:  # how Linux tells that the other end of a terminal is closed
                break
            if not data:
                break
            shown += data.decode(errors="replace")
            if left and left[0][0] in shown[seen:]:
                time.sleep(0.3)  # what is typed before a question is thrown away
                seen = len(shown)
                os.write(terminal, f"{left.pop(0)[1]}\n".encode())
        else:
            raise AssertionError(f"{argv} did not end; it waits for {left[:1]}\n{shown}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL) if time.monotonic() >= end else None
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
    assert not left, f"never asked: {left[0][0]}\n{shown}"
    return os.waitstatus_to_exitcode(status), shown
