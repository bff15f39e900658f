"""Flags and their choices out of what a program prints when it is asked for help, and what of a command line is wrong.

Four forms are read: Python's argparse (vLLM, SGLang), typer's tables (infinity), clap (text-embeddings-router) and
llama.cpp's own. Pure.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fleetctl.engine.runtimes.flags import split_flags
from fleetctl.engine.runtimes.runtime import Runtime
from fleetctl.spec.problems import listed

# A flag begins a line: of argparse and clap after at most 8 spaces (explanations are further in), in a table after its
# border. What follows it after two spaces is a further spelling, or its explanation.
_LINE = re.compile(r"^(?:[│|] ?\*? {0,4}| {0,8})(-{1,2}[A-Za-z].*)$")
_FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
_BRACES = re.compile(r"\{([^{}]+)\}")
_TABLE = re.compile(r"\[([\w.-]+(?:\|[\w.-]+)+)\]")
_POSSIBLE = re.compile(r"\[possible values: ([^\]]+)\]")
_LISTED = re.compile(r"^ +- ([\w.-]+)(?::|$)", re.MULTILINE)
_ALLOWED = re.compile(r"allowed values: ([^(\n]+(?:\n +[^(\n]+)*)")


@dataclass(frozen=True)
class Wrong:
    """A flag that the program does not know, or a value that it does not take; ``near`` is what was meant, if any."""

    flag: str
    value: str | None
    near: str | None
    choices: tuple[str, ...] = ()


def known_flags(text: str) -> dict[str, tuple[str, ...]]:
    """Flag → the values that it takes, empty where that is not told."""
    found: dict[str, tuple[str, ...]] = {}
    for head, below in _blocks(text):
        pieces = re.split(r"\s{2,}", head.rstrip(" │|"))
        spelled, rest = _spellings(pieces)
        choices = _choices(spelled, rest, below)
        for name in _FLAG.findall(_BRACES.sub("", spelled)):
            found[name] = found.get(name) or choices
    return found


def wrong_words(words: Sequence[str], known: Mapping[str, tuple[str, ...]], runtime: Runtime) -> Iterator[Wrong]:
    """What of a command line its program would refuse."""
    for group in split_flags(words):
        if not group[0].startswith("-"):
            continue
        written, equals, value = group[0].partition("=")
        name = _name_in(written, known, runtime)
        if name is None:
            near = difflib.get_close_matches(written.replace("_", "-"), known, n=1)
            yield Wrong(written, None, near[0] if near else None)
            continue
        given = value if equals else group[1] if len(group) == 2 else None
        choices = known[name]
        if choices and given is not None and given not in choices:
            near = difflib.get_close_matches(given, choices, n=1)
            yield Wrong(written, given, near[0] if near else None, choices)


def said_of(wrong: Wrong, build: str, why: str = "") -> str:
    """In words, of a build such as ``vLLM 0.32.0``; ``why`` stands behind the flag."""
    near = f"; did you mean {wrong.near}?" if wrong.near else ""
    if wrong.value is not None:
        return f"{build} does not take {wrong.flag} {wrong.value}{near or '; it takes ' + listed(wrong.choices, 'or')}"
    return f"{build} does not know {wrong.flag}{why}{near}"


def _name_in(written: str, known: Mapping[str, tuple[str, ...]], runtime: Runtime) -> str | None:
    """The flag of the program that a word is, in any of the spellings that it takes; None: it knows none."""
    plain = written.partition(".")[0].replace("_", "-")
    for name in (written, plain, runtime.aliases.get(plain, plain)):
        if name in known:
            return name
    if not plain.startswith("--"):
        joined = runtime.aliases.get(plain[:2], plain[:2])  # -O3
        return joined if joined in known else None
    begun = [name for name in known if name.startswith(plain)] if runtime.abbreviates else []
    return begun[0] if len(begun) == 1 else None


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Each line with flags, and all that is below it until the next."""
    head: str | None = None
    below: list[str] = []
    for line in text.splitlines():
        begins = _LINE.match(line)
        if begins is None:
            below.append(line)
            continue
        if head is not None:
            yield head, "\n".join(below)
        head, below = begins.group(1), []
    if head is not None:
        yield head, "\n".join(below)


def _spellings(pieces: list[str]) -> tuple[str, str]:
    """The spellings of a flag, with what stands for its value, and the rest of its line."""
    taken = 1
    while taken < len(pieces) and (pieces[taken].startswith("-") or pieces[taken - 1].endswith(",")):
        taken += 1
    return " ".join(pieces[:taken]), "  ".join(pieces[taken:])


def _choices(spelled: str, rest: str, below: str) -> tuple[str, ...]:
    braces, table = _BRACES.search(spelled), _TABLE.match(rest)
    if braces:
        return _listed(braces.group(1).split(","))
    if table:
        return _listed(table.group(1).split("|"))
    possible, allowed = _POSSIBLE.search(below), _ALLOWED.search(f"{rest}\n{below}")
    if possible:
        return _listed(possible.group(1).split(","))
    if "Possible values:" in below:
        return _listed(_LISTED.findall(below.partition("Possible values:")[2]))
    return _listed(allowed.group(1).split(",")) if allowed else ()


def _listed(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(word.strip() for word in words if word.strip())
