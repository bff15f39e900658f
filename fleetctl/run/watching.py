"""A watch on the fleet of a command."""

from __future__ import annotations

from fleetctl.run.subject import Subject
from fleetctl.watch.watcher import Watcher


def watcher_of(subject: Subject) -> Watcher:
    """Reads the fleet; boxes that could not be connected are tried again in the background."""
    return Watcher(subject.boxes, subject.fleet, away=subject.unreachable, connect=subject.connect)
