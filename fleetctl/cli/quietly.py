"""Commands that go on until nobody wants them any more."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from fleetctl.errors import InterruptedMoveError

NO_READER = 141  # as a shell tells SIGPIPE


@contextmanager
def ended_quietly() -> Iterator[None]:
    """Ctrl-C, and a reader who is gone, are how one leaves: they end with their status and without a word."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(InterruptedMoveError.exit_code) from None
    except BrokenPipeError:
        # What is still in Python's buffers would fail once more at the very end.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        raise typer.Exit(NO_READER) from None
