"""A command line as a shell reads it: words, each with the line that it stands on."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fleetctl.importing.found import Word
from fleetctl.proxy.lint.findings import Place

_ENDS = (";", "&", "|", ">", "<", "(", ")")
_CONTINUED = re.compile(r"\\[ \t]*\n")
_OPERATOR = re.compile(r"[;&|<>()]+")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


def shell_words(file: str, text: str, line: int = 1) -> list[Word]:
    """The words of all commands in a text; an operator such as ``&&`` or the end of a line is a word of its own.

    Quotes, backslashes, continued lines and comments are read; variables and substitutions are left as they stand. A
    quote that is never closed ends with the text.
    """
    return list(_Lexer(file, text, line))


class _Lexer:
    def __init__(self, file: str, text: str, line: int) -> None:
        self.file = file
        self.text = text
        self.line = line

    def __iter__(self) -> Iterator[Word]:
        text, at = self.text, 0
        word: list[str] = []
        began = self.line
        inside = False
        while at < len(text):
            char = text[at]
            if not inside:
                began = self.line
            if char == "\\" and (continued := _CONTINUED.match(text, at)):  # also with blanks behind the backslash
                self.line += 1
                at = continued.end()
            elif char == "\\" and at + 1 < len(text):
                word.append(text[at + 1])
                inside = True
                at += 2
            elif char in "'\"":
                quoted, at = self._quoted(char, at + 1)
                word.append(quoted)
                inside = True
            elif char.isspace() or char in _ENDS or (char == "#" and not inside):
                if inside:
                    yield Word("".join(word), Place(self.file, began))
                    word, inside = [], False
                if char == "#":
                    at = text.find("\n", at) if text.find("\n", at) >= 0 else len(text)
                    continue
                if char == "\n":
                    yield Word("\n", Place(self.file, self.line))
                    self.line += 1
                elif char in _ENDS:
                    operator = _OPERATOR.match(text, at)
                    assert operator is not None
                    yield Word(operator[0], Place(self.file, self.line))
                    at += len(operator[0]) - 1
                at += 1
            else:
                word.append(char)
                inside = True
                at += 1
        if inside:
            yield Word("".join(word), Place(self.file, began))

    def _quoted(self, quote: str, at: int) -> tuple[str, int]:
        """What stands between quotes, and the place behind them."""
        found = []
        while at < len(self.text) and self.text[at] != quote:
            char = self.text[at]
            if quote == '"' and char == "\\" and self.text[at + 1 : at + 2] in ('"', "\\", "$", "`", "\n"):
                at += 1
                char = self.text[at]
                if char == "\n":
                    self.line += 1
                    at += 1
                    continue
            if char == "\n":
                self.line += 1
            found.append(char)
            at += 1
        return "".join(found), at + 1


def commands(words: list[Word]) -> list[list[Word]]:
    """The commands among words, without operators. What a redirection goes to is no word of a command."""
    found: list[list[Word]] = [[]]
    skip = False
    for word in words:
        if word.text == "\n" or (word.text[:1] in _ENDS and not word.text.strip(";&|<>()")):
            skip = ">" in word.text or "<" in word.text
            if ">" in word.text and found[-1] and found[-1][-1].text in ("1", "2"):  # of 2>&1
                found[-1].pop()
            if not skip and found[-1]:
                found.append([])
        elif skip:
            skip = False
        else:
            found[-1].append(word)
    return [command for command in found if command]


def is_assignment(word: Word) -> bool:
    """``NAME=value`` before a command."""
    return _ASSIGNMENT.match(word.text) is not None
