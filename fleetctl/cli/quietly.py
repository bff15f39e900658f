"""Commands that go on until nobody wants them any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from fleetctl.errors import InterruptedMoveError


@contextmanager
def ended_quietly() -> Iterator[None]:
    """Ctrl-C is how one leaves: it ends with its status and without a word."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(InterruptedMoveError.exit_code) from None
