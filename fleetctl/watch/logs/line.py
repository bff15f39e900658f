"""A line of a log, and what is said about a box between them."""

from __future__ import annotations

from dataclasses import dataclass

SECOND = 1_000_000  # microseconds, in which the journal counts


@dataclass(frozen=True)
class Line:
    """One line. ``at`` is its time by the clock of this machine, ``box_at`` by that of the box (epoch seconds).

    ``unit`` is the unit that it is about, ``identifier`` what wrote it (``systemd`` where that speaks of the unit), and
    ``priority`` syslog's (0 to 7), as the journal has them; they are empty where it has none.
    """

    box: str
    unit: str
    at: float
    box_at: float
    identifier: str
    pid: str
    priority: str
    text: str


@dataclass(frozen=True)
class Note:
    """Something about a box: it is away, back, or its clock is wrong."""

    box: str
    text: str
