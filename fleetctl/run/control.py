"""How a move is stopped from outside."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass
class Control:
    """How an operator (Ctrl-C) or a lost lock stops a move.

    ``stop``: begin nothing more and undo. ``leave``: do not even undo. ``lost``: somebody else holds the fleet.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    leave: threading.Event = field(default_factory=threading.Event)
    lost: threading.Event = field(default_factory=threading.Event)
    reason: str = ""

    def ask_to_stop(self, reason: str) -> None:
        """First call: stop after the running steps and undo. Second call: leave everything as it is."""
        if self.stop.is_set():
            self.leave.set()
        self.reason = self.reason or reason
        self.stop.set()

    def abandon(self, reason: str) -> None:
        """Stop without undoing: the fleet is no longer this command's."""
        self.reason = reason
        self.lost.set()
        self.leave.set()
        self.stop.set()
