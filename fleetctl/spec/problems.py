"""What is wrong with a fleet.yaml, as values with a place, and the one error that carries all of them."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fleetctl.errors import SpecError

Path = tuple[str | int, ...]

_SECRET_NAME = re.compile(
    r"(^|_)(TOKEN|PASSWORD|PASSWD|PASSPHRASE|SECRET|API_?KEY|ACCESS_?KEY|SECRET_?KEY|PRIVATE_?KEY)$",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"\b(hf_|sk-|ghp_|gho_|glpat-|xox[abp]-|nvapi-|AKIA|eyJhbGciOi)[A-Za-z0-9_-]{12,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
)
_SECRET_LINE = re.compile(r"""(?P<name>[A-Za-z0-9_-]+)["']?\s*:\s*(?P<value>[^\s{].*)""")
_SECRET_PARTS = frozenset({"api_keys", "sudo_password"})


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. Lines and columns count from 1; ``path`` is () for the file as a whole."""

    line: int
    column: int
    path: Path
    message: str

    def said(self, source: str) -> str:
        """``fleet.yaml:12:5: models.qwen: …``"""
        where = f"{dotted(self.path)}: " if self.path else ""
        return f"{source}:{self.line}:{self.column}: {where}{self.message}"


class FleetFileError(SpecError):
    """A fleet.yaml that cannot be used. ``problems`` has every problem of it, in the order of the file."""

    def __init__(self, source: str, problems: Iterable[Problem]) -> None:
        self.source = source
        self.problems = tuple(sorted(set(problems), key=lambda p: (p.line, p.column, dotted(p.path), p.message)))
        count = len(self.problems)
        lines = [problem.said(source) for problem in self.problems]
        lines.append(f"{count} {'problem' if count == 1 else 'problems'} in {source}")
        super().__init__("\n".join(lines))


def dotted(path: Path) -> str:
    """``('superseded', 1, 'unit')`` as ``superseded[1].unit``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            part = "…" if _SECRET_VALUE.search(part) else part
            part = part if re.fullmatch(r"[\w@:.-]+", part) else json.dumps(part, ensure_ascii=False)
            text += f".{part}" if text else part
    return text


def looks_secret(name: str) -> bool:
    """Whether an environment variable of that name holds a secret, going by the name."""
    return _SECRET_NAME.search(name) is not None


def holds_secret(text: str) -> bool:
    """Whether a text has the form of a well-known kind of token or private key."""
    return _SECRET_VALUE.search(text) is not None


def shown(value: Any, path: Path = ()) -> str:
    """A value as it may be repeated in a message: short, and never where a secret could be."""
    secret = any(isinstance(part, str) and (part in _SECRET_PARTS or looks_secret(part)) for part in path)
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    if secret or (isinstance(value, str) and holds_secret(value)):
        return "this value"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value if len(value) <= 60 else value[:57] + "…", ensure_ascii=False)
    return str(value)


def line_shown(line: str) -> str:
    """A line of the file, without what may be a secret in it. The length does not change."""
    line = _SECRET_VALUE.sub(lambda found: "•" * len(found[0]), line)
    found = _SECRET_LINE.search(line)
    if found and (looks_secret(found["name"].replace("-", "_")) or found["name"] in _SECRET_PARTS):
        line = line[: found.start("value")] + "•" * len(found["value"])
    return line


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The valid spelling that is close enough to ``word`` to be what was meant; the first of several as close."""
    return next(iter(_near(word, choices)), None)


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """``did you mean qwen?`` where something is near, else the valid spellings."""
    choices = sorted(set(choices))
    near = _near(word, choices)
    if near:
        return f"did you mean {listed(sorted(near[:3]), 'or')}?"
    return f"write {listed(choices, 'or')}"


def near_or_all(name: str, known: Iterable[str]) -> str:
    """For a name that was typed: ``did you mean spark1?`` where one is near, else ``there are spark1, spark2``."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {near[0]}?"
    return f"there {'are' if len(known) > 1 else 'is'} {', '.join(known)}" if known else "there are none"


def _near(word: str, choices: Iterable[str]) -> list[str]:
    """The choices that are nearest to a word, capitals and dashes aside; none where all are far."""
    folded: dict[str, list[str]] = {}
    for choice in choices:
        folded.setdefault(_folded(choice), []).append(choice)
    found = difflib.get_close_matches(_folded(word), folded, n=3, cutoff=0.6)
    best = [_likeness(word, match) for match in found]
    return [choice for match, like in zip(found, best, strict=True) if like == best[0] for choice in folded[match]]


def _folded(word: str) -> str:
    return word.lower().replace("-", "_")


def _likeness(word: str, match: str) -> float:
    return difflib.SequenceMatcher(None, match, _folded(word)).ratio()


def listed(words: Iterable[str], last: str = "and") -> str:
    """``a, b and c``"""
    words = list(words)
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}" if words else ""
