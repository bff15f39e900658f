"""What a rule is, what it finds, and how findings are gathered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

Config = TypeVar("Config")


class Severity(StrEnum):
    """How bad it is: requests are lost or generated twice; an outage gets longer; worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, order=True)
class Place:
    """A line of a file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Assumed:
    """What the engines behind the proxy need; the rules compare settings with it.

    ``first_token_s``: seconds of silence before the first token of the longest prompt. The default was measured on
    one GB10 for 202,323 tokens.
    """

    first_token_s: float = 256.0


@dataclass(frozen=True)
class Seen:
    """What a rule saw in one place: the setting as it stands, what it does, what to write instead."""

    place: Place
    where: str
    setting: str
    outage: str
    write: str
    severity: Severity | None = None


@dataclass(frozen=True)
class Rule(Generic[Config]):
    """One rule. ``example`` is a configuration in which it finds something."""

    code: str
    severity: Severity
    title: str
    looks_for: str
    why: str
    source: str
    example: str
    check: Callable[[Config, Assumed], Iterator[Seen]]


@dataclass(frozen=True)
class Finding:
    """A setting that matters. ``also`` are further places where the same is found."""

    code: str
    severity: Severity
    title: str
    place: Place
    where: str
    setting: str
    outage: str
    write: str
    why: str
    source: str
    also: tuple[Place, ...] = ()


@dataclass
class Rules(Generic[Config]):
    """The rules of one family, in the order in which they are documented."""

    rules: list[Rule[Config]] = field(default_factory=list)

    def rule(
        self, code: str, severity: Severity, title: str, *, looks_for: str, why: str, source: str, example: str
    ) -> Callable[[Callable[[Config, Assumed], Iterator[Seen]]], Callable[[Config, Assumed], Iterator[Seen]]]:
        """Register the decorated check as a rule."""

        def register(
            check: Callable[[Config, Assumed], Iterator[Seen]],
        ) -> Callable[[Config, Assumed], Iterator[Seen]]:
            self.rules.append(Rule(code, severity, title, looks_for, why, source, example, check))
            return check

        return register


def printable(text: str, most: int) -> str:
    """Words of a file as they can be shown on a terminal: one line of at most ``most`` characters."""
    line = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text[:most])
    return line + ("…" if len(text) > most else "")


def apply(rules: Iterable[Rule[Config]], config: Config, assumed: Assumed) -> list[Finding]:
    """Every finding, in the order of the file; the same finding in several places is told once."""
    found: dict[tuple[str, str, str, str], list[tuple[Rule[Config], Seen]]] = {}
    for rule in rules:
        for seen in rule.check(config, assumed):
            found.setdefault((rule.code, seen.setting, seen.outage, seen.write), []).append((rule, seen))
    findings = []
    for same in found.values():
        rule, first = same[0]
        also = sorted({seen.place for _, seen in same} - {first.place})
        where = list(dict.fromkeys(seen.where for _, seen in same))
        severity = first.severity or rule.severity
        told = (printable(first.setting, 200), printable(first.outage, 800), printable(first.write, 400))
        told_where = printable(", ".join(where[:3]), 200) + (f" and {len(where) - 3} more" if len(where) > 3 else "")
        findings.append(
            Finding(rule.code, severity, rule.title, first.place, told_where, *told, rule.why, rule.source, tuple(also))
        )
    return sorted(findings, key=lambda finding: (finding.place, finding.code))
