"""A YAML text as values that know the line they stand on. Scalars stay as they are written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from fleetctl.errors import SpecError
from fleetctl.proxy.lint.findings import Place

LONGEST = 1 << 20  # characters
DEEPEST = 40
MOST_NODES = 50_000
"""Values of a text, those that aliases repeat included."""


@dataclass(frozen=True)
class Node:
    """A mapping, a list or a scalar. ``text`` is of a scalar, "" for null; ``literal``: it is a block after ``|``."""

    place: Place
    text: str | None = None
    literal: bool = False
    quoted: bool = False
    items: tuple[tuple[str, Node], ...] | None = None
    parts: tuple[Node, ...] | None = None

    def get(self, key: str) -> Node | None:
        """The value of a key; None where there is none."""
        return next((value for name, value in self.items or () if name == key), None)

    def said(self, key: str) -> str | None:
        """The scalar of a key; None where there is none, or nothing in it."""
        node = self.get(key)
        return node.text or None if node is not None else None

    @property
    def lines_from(self) -> int:
        """Line of the first character of a scalar: that of a block begins below its ``|`` or ``>``."""
        return self.place.line + 1 if self.literal else self.place.line

    def strings(self) -> Iterator[Node]:
        """The scalars of a list, or this one where it is one itself."""
        if self.parts is None:
            yield self
        else:
            yield from (part for part in self.parts if part.text is not None)


def read_yaml(file: str, text: str) -> Node:
    """The tree of a text; aliases and ``<<`` are put in place. Raises SpecError, with the line, for what is no YAML."""
    if len(text) > LONGEST:
        raise SpecError(f"{file} has more than {LONGEST:,} characters: that is no recipe and no compose file")
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise SpecError(f"{file}:{line}: this is not valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SpecError(f"{file}:1: this is not valid YAML: {type(error).__name__}") from None
    return Node(Place(file, 1), text="") if root is None else _Tree(file).node(root, 0)


class _Tree:
    """Makes nodes, and counts them: a few lines of aliases can stand for billions."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.count = 0

    def node(self, node: yaml.Node, depth: int) -> Node:
        file = self.file
        place = Place(file, node.start_mark.line + 1)
        self.count += 1
        if self.count > MOST_NODES:
            raise SpecError(f"{place}: more than {MOST_NODES:,} values, with those that *aliases repeat")
        if depth > DEEPEST:
            raise SpecError(f"{place}: more than {DEEPEST} levels inside each other")
        if isinstance(node, yaml.MappingNode):
            items: dict[str, Node] = {}
            for name, value in node.value:
                if name.value == "<<":
                    merged = value.value if isinstance(value, yaml.SequenceNode) else [value]
                    for one in merged:
                        for key, inner in self.node(one, depth + 1).items or ():
                            items.setdefault(key, inner)
            for name, value in node.value:
                if isinstance(name, yaml.ScalarNode) and name.value != "<<":
                    inner = self.node(value, depth + 1)
                    at = Place(file, name.start_mark.line + 1)
                    items[name.value] = inner if inner.text is None or inner.literal else _placed(inner, at)
            return Node(place, items=tuple(items.items()))
        if isinstance(node, yaml.SequenceNode):
            return Node(place, parts=tuple(self.node(one, depth + 1) for one in node.value))
        null, style = node.tag == "tag:yaml.org,2002:null", getattr(node, "style", None)
        text = "" if null else str(node.value)
        return Node(place, text=text, literal=style in ("|", ">"), quoted=style in ("'", '"'))


def _placed(node: Node, at: Place) -> Node:
    """A scalar stands where its key does, also where an anchor of another place has its value."""
    return Node(at, text=node.text, quoted=node.quoted)
