"""The commands that README.md and docs/ show, as a reader would copy them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MADE = ("commands.md",)
"""Pages made from the commands: they show how a command is called, with its placeholders."""

_PLACEHOLDER = re.compile(r"[A-Z]{2,}|…|\[|\||\.\.\.|<[a-z]")


@dataclass(frozen=True)
class Shown:
    """A line of a block of commands."""

    page: str
    line: int
    text: str

    @property
    def words(self) -> list[str]:
        """The words as a shell has them, without a comment."""
        return shlex.split(self.text, comments=True)

    @property
    def copied(self) -> bool:
        """It can be copied and run as it stands; others show a form, with placeholders."""
        bare = re.sub(r"'[^']*'|\"[^\"]*\"|#.*| [A-Z_]+=\S*|export [A-Z_]+=\S*", "", self.text)
        return _PLACEHOLDER.search(bare) is None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def pages() -> list[Path]:
    """README.md and every page of docs/ that people wrote."""
    return [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").glob("*.md") if page.name not in MADE)]


def blocks(page: Path) -> Iterator[Shown]:
    """Lines of indented blocks and of fences, numbered from 1; a line that ends with a backslash goes on."""
    fenced, kept, begun = False, "", 0
    lines = page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        if line.strip().startswith("```"):
            fenced = not fenced
            continue
        if not (fenced or line.startswith("    ")):
            continue
        begun, kept = (begun, kept + " " + line.strip()) if kept else (number, line.strip())
        if kept.endswith("\\"):
            kept = kept[:-1].rstrip()
            continue
        yield Shown(str(page.relative_to(ROOT)), begun, kept)
        kept = ""


def commands() -> list[Shown]:
    """Lines of blocks that call fleetctl."""
    return [
        shown
        for page in pages()
        for shown in blocks(page)
        if re.search(r"(^|/|\s)fleetctl\s", shown.text + " ")
        and re.match(r"([\w./-]*bin/)?(fleetctl|sudo|[A-Z_]+=\S+)\b", shown.text)
    ]


def calls(shown: Shown) -> list[list[str]]:
    """The words after ``fleetctl`` of each call in a line, which may have several: ``a && b; c``."""
    found: list[list[str]] = []
    words = shlex.shlex(shown.text, posix=True, punctuation_chars=";&|<>")
    words.whitespace_split, words.commenters = True, "#"
    current: list[str] | None = None
    for word in words:
        if current is None and word.rsplit("/", 1)[-1] == "fleetctl":
            current = []
            found.append(current)
        elif set(word) <= set(";&|<>"):
            current = None
        elif current is not None:
            current.append(word)
    return found


def inline() -> Iterator[Shown]:
    """Commands in running text: `fleetctl …`."""
    for page in pages():
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
            if not line.startswith("    "):
                for text in re.findall(r"`(fleetctl [^`]+)`", line):
                    yield Shown(str(page.relative_to(ROOT)), number, text)
