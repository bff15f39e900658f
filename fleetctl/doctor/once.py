"""Two families can see one thing: the log of an engine says what the box shows by itself. It is told once. Pure."""

from __future__ import annotations

from fleetctl.doctor.finding import Finding

COVERED = {
    "E06": "P04",  # a port that is taken: who has it says more than that the engine did not get it
    "E14": "B05",  # few open files: the limit of the process says more than the engine's warning
    "E08": "E04",  # an engine that stands still: that it waits for a process of its own says more
    "U16": "X01",  # an edited file of the proxy: what harm a line of it does says more
}
"""Kind → the kind that says the same of the same box and unit (or port), and more."""


def once(found: list[Finding]) -> list[Finding]:
    """The findings without those that another one covers."""
    return [one for one in found if not any(_covers(other, one) for other in found)]


def _covers(other: Finding, one: Finding) -> bool:
    if COVERED.get(one.code) != other.code or one.box != other.box:
        return False
    return other.where == one.where or f"{other.where}," in one.says or _file(other) == one.where


def _file(finding: Finding) -> str:
    """The file of a place ``FILE:LINE``."""
    return finding.where.rpartition(":")[0]
