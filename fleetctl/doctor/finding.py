"""What a kind of finding is, and one finding."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from fleetctl.proxy.lint.findings import Severity, printable

__all__ = ["Command", "Ending", "Finding", "Kind", "Remedy", "Severity", "by_weight"]

Command = tuple[str, ...]
"""A command as its words; no shell reads it."""

_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}


@dataclass(frozen=True)
class Ending:
    """A process that fleetctl started and that is to end. ``began`` is in clock ticks since the box booted."""

    pid: int
    began: int
    engine: str


@dataclass(frozen=True)
class Remedy:
    """A safe repair of one box: what ``--fix`` runs there as root, and what takes it back. Both are shown first.

    ``ends`` are left-over processes that it ends after the commands. Nothing brings those back.
    """

    do: tuple[Command, ...]
    undo: tuple[Command, ...]
    ends: tuple[Ending, ...] = ()

    def does(self) -> list[str]:
        """Its command lines, as they could be typed on the box."""
        return [shlex.join(words) for words in self.do] + [f"kill {one.pid}" for one in self.ends]

    def takes_back(self) -> list[str]:
        """The command lines that take it back."""
        return [shlex.join(words) for words in self.undo]


@dataclass(frozen=True)
class Kind:
    """A kind of finding. ``code`` never changes its meaning; ``fleetctl explain CODE`` prints all of this.

    ``looks_for`` completes "Looks for …", ``fix`` says what to do in general, ``source`` where the facts are from.
    """

    code: str
    severity: Severity
    title: str
    looks_for: str
    why: str
    fix: str
    source: str

    def found(
        self,
        box: str | None,
        where: str,
        says: str,
        *evidence: str,
        fix: str,
        remedy: Remedy | None = None,
        severity: Severity | None = None,
    ) -> Finding:
        """A finding of this kind; ``severity`` where this one is worse or better than usual."""
        seen = tuple(printable(line, 300) for line in evidence)
        return Finding(self.code, severity or self.severity, self.title, box, where, says, seen, self.why, fix, remedy)


@dataclass(frozen=True)
class Finding:
    """Something that hurts or will. ``box`` None: it is about the fleet.

    ``where`` is the unit, file, process, port or setting; ``says`` one sentence about it; ``evidence`` the lines as
    they were seen; ``fix`` the exact commands, or what to write, for this very finding.
    """

    code: str
    severity: Severity
    title: str
    box: str | None
    where: str
    says: str
    evidence: tuple[str, ...]
    why: str
    fix: str
    remedy: Remedy | None = None


def by_weight(findings: list[Finding], boxes: Mapping[str, object]) -> list[Finding]:
    """The worst first, then in the order of the boxes in fleet.yaml, then by code."""
    order = {box: number for number, box in enumerate(boxes)}
    return sorted(findings, key=lambda f: (_ORDER[f.severity], order.get(f.box or "", -1), f.code, f.where))
