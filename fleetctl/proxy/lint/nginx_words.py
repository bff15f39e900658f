"""Splits an nginx configuration into words, braces and semicolons, each with its line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_SPACE = re.compile(r"(?:\s+|\#[^\n]*)+")
# nginx ends a bare word at space, semicolon or brace; `${name}` is part of a word.
_BARE = re.compile(r"(?:\\.|\$\{[^}\s]*\}|[^\s;{}\\])+|\\", re.DOTALL)
_QUOTED = {'"': re.compile(r'"((?:\\.|[^"\\])*)"', re.DOTALL), "'": re.compile(r"'((?:\\.|[^'\\])*)'", re.DOTALL)}
_ESCAPE = re.compile(r"\\([\"'\\ ])")


@dataclass(frozen=True)
class Word:
    """A word, or one of ``{``, ``}``, ``;`` (then ``mark`` is true)."""

    text: str
    line: int
    mark: bool = False


def words_of(text: str) -> Iterator[Word]:
    """The words in order. A quote that is never closed runs to the end of the text."""
    position, line = 0, 1
    last = ""
    while position < len(text):
        start = position
        match = _SPACE.match(text, position)
        if match is not None:
            position = match.end()
        elif text[position] in ";{}":
            position += 1
            yield Word(text[start], line, mark=True)
            if text[start] == "{" and last.endswith("_by_lua_block"):
                position = _after_lua(text, position)
                yield Word("}", line + text.count("\n", start, position), mark=True)
            last = ""
        elif text[position] in "\"'":
            quoted = _QUOTED[text[position]].match(text, position)
            position = quoted.end() if quoted else len(text)
            yield Word(_ESCAPE.sub(r"\1", quoted[1] if quoted else text[start + 1 :]), line)
        else:
            bare = _BARE.match(text, position)
            position = bare.end() if bare else position + 1
            word = text[start:position]
            last = last or word
            yield Word(_ESCAPE.sub(r"\1", word), line)
        line += text.count("\n", start, position)


def _after_lua(text: str, position: int) -> int:
    """The end of a Lua block whose opening brace was read: its braces balance, strings and comments aside."""
    depth = 1
    for match in re.compile(r"--[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|[{}]").finditer(text, position):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
    return len(text)
