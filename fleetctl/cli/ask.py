"""Asking the person at the terminal before something is changed."""

from __future__ import annotations

import sys
import termios

from fleetctl.errors import SpecError


def confirm(question: str) -> bool:
    """Whether the person says yes; what was typed before the question does not count.

    Raises SpecError where there is nobody to ask.
    """
    if not sys.stdin.isatty():
        raise SpecError(
            "nobody can be asked here, for standard input is no terminal; nothing was changed",
            hint="say --yes to go on without being asked",
        )
    termios.tcflush(sys.stdin, termios.TCIFLUSH)
    while True:
        answer = input(f"{question} [y/N] ").strip().lower()
        if answer in ("y", "yes", "n", "no", ""):
            return answer.startswith("y")
