"""The node tree of a fleet.yaml as plain values, each with its place in the file.

Merge keys (``<<``) and aliases are resolved. Keys that appear twice, and what YAML does not read as it looks (``no:``,
``0777``, ``22:30``), become problems here, where it is still known how they were written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from fleetctl.spec.problems import Path, Problem

MOST_NODES = 20_000
DEEPEST = 40
_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = frozenset(_TAG + kind for kind in ("str", "int", "float", "bool", "null", "seq", "map", "merge"))
_INTEGER = re.compile(r"[-+]?(0[xX][0-9a-fA-F_]+|0[bB][01_]+|[0-9][0-9_]*(:[0-5]?[0-9])*)")
_FLOAT = re.compile(
    r"[-+]?([0-9][0-9_:]*\.[0-9_]*([eE][-+]?[0-9]+)?|\.[0-9][0-9_]*([eE][-+]?[0-9]+)?|\.(inf|nan))",
    re.IGNORECASE,
)
_BOOLEANS = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}


class Place(NamedTuple):
    """Line and column, counted from 1."""

    line: int
    column: int


class TooLargeError(Exception):
    """The tree is not one of a fleet: aliases multiply it, contain themselves, or it is too deep."""

    def __init__(self, place: Place, message: str) -> None:
        super().__init__(message)
        self.place = place


class Tree:
    """``data`` has the values; ``words`` says how those that are not text were written."""

    def __init__(self, root: yaml.Node) -> None:
        self.words: dict[Path, str] = {}
        self.suspect: set[Path] = set()
        self.problems: list[Problem] = []
        self._keys: dict[Path, Place] = {}
        self._values: dict[Path, Place] = {}
        self._count = 0
        self._open: list[yaml.Node] = []
        self.data: Any = self._convert(root, ())

    def place(self, path: Path) -> Place:
        """Where the value at a path begins: an empty one at its key, one that is not there at its parent."""
        for length in range(len(path), -1, -1):
            found = self._values.get(path[:length])
            if found is not None:
                return found
        return Place(1, 1)

    def key_place(self, path: Path) -> Place:
        """Where the key at a path is; for an item of a list, where the item is."""
        for length in range(len(path), -1, -1):
            found = self._keys.get(path[:length])
            if found is not None:
                return found
            if length and isinstance(path[length - 1], int) and path[:length] in self._values:
                return self._values[path[:length]]
        return Place(1, 1)

    def knows(self, path: Path) -> bool:
        """Whether there is a value at a path."""
        return path in self._values

    def problem(self, path: Path, message: str, *, key: bool = False) -> Problem:
        """A problem with the value, or the key, at a path."""
        line, column = self.key_place(path) if key else self.place(path)
        return Problem(line, column, path, message)

    def _convert(self, node: yaml.Node, path: Path) -> Any:
        place = _place(node)
        self._count += 1
        if any(node is above for above in self._open):
            raise TooLargeError(place, "this &anchor contains its own *alias, so it would never end")
        if self._count > MOST_NODES:
            raise TooLargeError(
                place, f"*aliases unfold to more than {MOST_NODES:,} values; a fleet needs no such thing"
            )
        if len(self._open) > DEEPEST:
            raise TooLargeError(place, f"nested more than {DEEPEST} deep; a fleet is about 6")
        self._values[path] = place
        if node.tag not in _PLAIN_TAGS and not _implied(node):
            self._note(path, place, f"the tag {_tag(node)} is not used in a fleet; write the value without it")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        self._open.append(node)
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self._convert(item, (*path, index)) for index, item in enumerate(node.value)]
            return self._mapping(node, path)
        finally:
            self._open.pop()

    def _mapping(self, node: yaml.Node, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                merged.append(value_node)
                continue
            name = self._key(key_node, path)
            if name is None:
                continue
            below = (*path, name)
            if name in values:
                first = self._keys[below]
                line, column = _place(key_node)
                message = f"this key is already on line {first.line}; keep one of the two"
                self.problems.append(Problem(line, column, below, message))
                continue
            self._keys[below] = _place(key_node)
            values[name] = self._convert(value_node, below)
            if values[name] is None:
                self._values[below] = self._keys[below]
        for value_node in merged:
            for key_node, name, below_node in self._merged(value_node, path):
                if name not in values:
                    below = (*path, name)
                    self._keys[below] = _place(key_node)
                    values[name] = self._convert(below_node, below)
        return values

    def _merged(self, node: yaml.Node, path: Path) -> Iterator[tuple[yaml.Node, str, yaml.Node]]:
        """Keys that ``<<: *anchor`` or ``<<: [*a, *b]`` brings in; earlier ones win."""
        self._count += 1
        if self._count > MOST_NODES or len(self._open) > DEEPEST or any(node is above for above in self._open):
            raise TooLargeError(_place(node), "this << merges into itself or unfolds without end")
        self._open.append(node)
        try:
            if isinstance(node, yaml.MappingNode):
                for key_node, value_node in node.value:
                    if key_node.tag != f"{_TAG}merge" and isinstance(key_node, yaml.ScalarNode):
                        yield key_node, key_node.value, value_node
                for key_node, value_node in node.value:
                    if key_node.tag == f"{_TAG}merge":
                        yield from self._merged(value_node, path)
            elif isinstance(node, yaml.SequenceNode):
                for item in node.value:
                    yield from self._merged(item, path)
            else:
                line, column = _place(node)
                self.problems.append(Problem(line, column, path, "<< takes a mapping: write <<: *anchor"))
        finally:
            self._open.pop()

    def _key(self, node: yaml.Node, path: Path) -> str | None:
        place = _place(node)
        if not isinstance(node, yaml.ScalarNode):
            message = "a key is one word, not a list or a mapping; text that begins with [ or { needs quotes"
            self.problems.append(Problem(*place, path, message))
            return None
        kind = _kind(node)
        if kind != "str":
            what = {"bool": "yes or no", "null": "nothing", "int": "a number", "float": "a number"}[kind]
            written = node.value or "an empty key"
            self.problems.append(
                Problem(
                    *place,
                    path,
                    f'the key {written} is read by YAML as {what}; write it in quotes: "{node.value}"',
                )
            )
        return str(node.value)

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        text: str = node.value
        kind = _kind(node)
        if kind == "str":
            if "\0" in text:
                self._note(path, _place(node), "the text contains a NUL character (\\0); remove it")
            return text
        self.words[path] = text
        if kind == "null":
            return None
        if kind == "bool":
            return _BOOLEANS[text.lower()]
        return self._number(node, path, kind)

    def _number(self, node: yaml.ScalarNode, path: Path, kind: str) -> int | float:
        text = node.value
        place = _place(node)
        bare = text.replace("_", "").lstrip("+-")
        quoted = f'for text write "{text}" in quotes'
        if ":" in bare:
            self._note(path, place, f"{text} is read by YAML as a number to base 60; {quoted}")
            return 0
        if kind == "float":
            if bare.lower() in (".inf", ".nan"):
                self._note(path, place, f"{text} is not a number to reckon with; write a finite one")
                return 0
            number = float(text.replace("_", ""))
            if not math.isfinite(number):
                self._note(path, place, f"{text} is too large a number; {quoted}")
                return 0
            return number
        if re.fullmatch(r"0[xX].*|0[bB].*|0[0-7]+", bare):
            named = "octal" if bare[1] in "01234567" else {"x": "hexadecimal", "b": "binary"}[bare[1].lower()]
            if len(bare) > 40 or (len(bare) == 2 and named != "octal"):
                self._note(path, place, f"this {named} number cannot be read; {quoted}")
                return 0
            value = int(bare, {"octal": 8, "hexadecimal": 16, "binary": 2}[named])
            plain = bare.lstrip("0") if named == "octal" else str(value)
            self._note(path, place, f"{text} is read by YAML as the {named} number {value}; "
                       f"for a number write {plain or 0}, {quoted}")  # fmt: skip
            return 0
        if len(bare) > 18:
            self._note(path, place, f"a number of {len(bare)} digits is too large; {quoted}")
            return 0
        return int(text.replace("_", ""))

    def _note(self, path: Path, place: Place, message: str) -> None:
        self.suspect.add(path)
        self.problems.append(Problem(*place, path, message))


def _place(node: yaml.Node) -> Place:
    return Place(node.start_mark.line + 1, node.start_mark.column + 1)


def _kind(node: yaml.ScalarNode) -> str:
    """str, int, float, bool or null; dates and the like are text."""
    kind = str(node.tag).removeprefix(_TAG)
    if node.style in ("'", '"', "|", ">"):
        return "str"
    if kind == "bool":
        return kind if node.value.lower() in _BOOLEANS else "str"
    if kind == "null":
        return kind if node.value.lower() in ("", "~", "null") else "str"
    pattern = {"int": _INTEGER, "float": _FLOAT}.get(kind)
    return kind if pattern and pattern.fullmatch(node.value) else "str"


def _implied(node: yaml.Node) -> bool:
    """Tags that plain text gets without being asked: a date, and `=`."""
    return node.tag in (f"{_TAG}timestamp", f"{_TAG}value")


def _tag(node: yaml.Node) -> str:
    return str(node.tag).replace(_TAG, "!!")[:60]
