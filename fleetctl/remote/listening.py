"""An op that listens on a box: it tells its port first, then works beside whatever calls it there."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from fleetctl.errors import BoxError, FleetError
from fleetctl.remote.connection import BoxConnection

PORT_WAIT = 30.0
"""Seconds until it has named its port."""


class Listener:
    """One such op, at work in a thread until it ends.

    ``hear`` gets its other events, ``on`` is said where it does not begin to listen, ``timeout`` limits the whole op.
    Raises what the op failed with before it listened, and BoxError when it has not named a port in time.
    """

    def __init__(
        self,
        box: BoxConnection,
        op: str,
        args: dict[str, Any],
        hear: Callable[[dict[str, Any]], None] | None = None,
        *,
        on: str = "",
        wait: float = PORT_WAIT,
        timeout: float | None = None,
    ) -> None:
        self.told: Any = None
        """What the op returned; None while it is at work."""
        self.failed: FleetError | None = None
        self._box, self._op, self._args, self._hear, self._timeout = box, op, args, hear, timeout
        self._said: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        self.port = 0
        """0: it ended without having to listen."""
        try:
            self.port = self._said.get(timeout=wait)
        except queue.Empty:
            where = f" on {on}" if on else ""
            raise BoxError(box.name, f"it did not begin to listen{where} within {wait:g} s") from None
        if self.failed is not None:
            raise self.failed

    def end(self, limit: float | None = None) -> None:
        """Wait for its end, so many seconds at most (None: as long as it takes)."""
        self._thread.join(limit)

    def cancel(self, limit: float) -> None:
        """Have it end, and wait for that."""
        self._box.cancel({self._op})
        self.end(limit)

    def _work(self) -> None:
        try:
            self.told = self._box.call_with(self._op, self._args, timeout=self._timeout, on_event=self._event)
        except FleetError as error:
            self.failed = error
        self._said.put(0)

    def _event(self, event: dict[str, Any]) -> None:
        if "port" in event:
            self._said.put(int(event["port"]))
        elif self._hear is not None:
            self._hear(event)
