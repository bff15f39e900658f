"""How a move is stopped from outside."""

from __future__ import annotations

from dataclasses import dataclass, field

INTERRUPTED = "interrupted"  # what the reason of a move begins with that was stopped by Ctrl-C or a signal
ON_REQUEST = "undone on request"  # and of one that was cut off and is taken back


class Flag:
    """Set once, looked at by many. Not a threading.Event: its lock cannot be taken again by a signal handler."""

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        """From now on it is set."""
        self._set = True

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._set


@dataclass
class Control:
    """How an operator (Ctrl-C) or a lost lock stops a move.

    ``stop``: begin nothing more and undo. ``leave``: do not even undo. ``lost``: somebody else holds the fleet.
    """

    stop: Flag = field(default_factory=Flag)
    leave: Flag = field(default_factory=Flag)
    lost: Flag = field(default_factory=Flag)
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
