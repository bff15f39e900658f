"""A tree read without trust: every question has an answer, whatever is in the file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fleetctl.spec.problems import Path, Problem
from fleetctl.spec.tree import Tree
from fleetctl.spec.units import parse_duration, parse_size


@dataclass(frozen=True)
class Seat:
    """A box as a placement names it; ``path`` is where, ``settings`` are those of the box alone."""

    box: str
    path: Path
    settings: dict[str, Any]


@dataclass(frozen=True)
class Placed:
    """A model in a layout. ``kind`` is copies, split or pool; seats are in the order of the file."""

    layout: str
    model: str
    kind: str
    path: Path
    values: dict[str, Any]
    seats: list[Seat] = field(default_factory=list)


class View:
    """Values of a fleet.yaml by path; what is missing or of the wrong kind is empty or None."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    def problem(self, path: Path, message: str, *, key: bool = False) -> Problem:
        return self.tree.problem(path, message, key=key)

    def get(self, *path: str | int) -> Any:
        value = self.tree.data
        for part in path:
            if isinstance(value, dict) and part in value:
                value = value[str(part)]
            elif isinstance(value, list) and isinstance(part, int) and part < len(value):
                value = value[part]
            else:
                return None
        return value

    def mapping(self, *path: str | int) -> dict[str, Any]:
        value = self.get(*path)
        return value if isinstance(value, dict) else {}

    def items(self, *path: str | int) -> list[Any]:
        value = self.get(*path)
        return value if isinstance(value, list) else []

    def text(self, *path: str | int) -> str | None:
        value = self.get(*path)
        return value if isinstance(value, str) else None

    def texts(self, *path: str | int) -> list[tuple[Path, str]]:
        """The texts in a list, each with its path."""
        return [((*path, at), item) for at, item in enumerate(self.items(*path)) if isinstance(item, str)]

    def number(self, *path: str | int) -> int | float | None:
        value = self.get(*path)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def size(self, *path: str | int) -> int | None:
        """Bytes, where a valid size is written."""
        try:
            return parse_size(self.get(*path))
        except ValueError:
            return None

    def duration(self, *path: str | int) -> float | None:
        """Seconds, where a valid duration is written."""
        try:
            return parse_duration(self.get(*path))
        except ValueError:
            return None

    def placements(self) -> Iterator[Placed]:
        """Every placement that is a mapping, with its boxes."""
        for layout in self.mapping("layouts"):
            for model in self.mapping("layouts", layout):
                values = self.get("layouts", layout, model)
                if isinstance(values, dict):
                    path: Path = ("layouts", layout, model)
                    kind = next((kind for kind in ("split", "pool") if values.get(kind) is not None), "copies")
                    yield Placed(layout, model, kind, path, values, self._seats((*path, kind)))

    def _seats(self, path: Path) -> list[Seat]:
        named = self.get(*path)
        if isinstance(named, dict):
            return [
                Seat(box, (*path, box), settings if isinstance(settings, dict) else {})
                for box, settings in named.items()
            ]
        return [Seat(box, where, {}) for where, box in self.texts(*path)]
