"""Arrows between the rooms point one way, as docs/design.md has them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fleetctl
from fleetctl.render.guard import SHARED

ROOT = Path(fleetctl.__file__).parent
EVERY = {"errors", "resources"}
BELOW = {"spec", "facts", "capacity", "render", "plan", "steps", "remote", "proxy", "engine", "gates", "checkpoint"}
BELOW |= {"doctor", "watch", "evals", "bench", "importing", "profiles", "pool"}
MAY_TOUCH = {
    "spec": set[str](),
    "facts": {"spec", "remote", "render", "plan"},
    "capacity": {"spec"},
    "checkpoint": {"spec", "capacity"},
    "render": {"spec", "capacity", "engine", "pool"},
    "plan": {"spec", "render", "facts", "engine"},
    "steps": {"spec", "facts", "render", "plan", "remote", "engine", "gates", "checkpoint", "bench", "onbox"},
    "doctor": {"spec", "facts", "capacity", "render", "plan", "proxy", "remote"},
    "watch": {"spec", "facts", "render", "remote", "engine"},
    "bench": {"spec", "engine"},
    "importing": {"spec", "engine", "proxy"},
    "profiles": {"spec"},
    "pool": set[str](),
    "run": BELOW | {"onbox"},
    "remote": {"spec"},
    "onbox": set[str](),
    "guard": {"onbox"},
    "engine": {"spec"},
    "gates": {"spec", "render", "engine", "evals"},
    "evals": {"spec", "engine"},
    "proxy": {"spec"},
    "lab": {"spec"},
    "cli": BELOW | {"run", "lab"},
}


def imported(path: Path) -> Iterator[str]:
    """Full names of the modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            # `from fleetctl import x` names either a room or something of the package itself.
            yield from (
                (f"{node.module}.{one.name}" for one in node.names) if node.module == "fleetctl" else [node.module]
            )
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names)


def rooms_touched(room: str) -> dict[str, str]:
    """Other rooms that a room imports from → a file that does."""
    folders = {path.name for path in ROOT.iterdir() if path.is_dir()}
    found = {}
    for path in sorted((ROOT / room).rglob("*.py")):
        for name in imported(path):
            parts = name.split(".")
            if parts[0] == "fleetctl" and len(parts) > 1 and parts[1] in folders | EVERY and parts[1] != room:
                found[parts[1]] = str(path.relative_to(ROOT))
    return found


def test_every_room_is_in_the_table() -> None:
    rooms = {path.parent.relative_to(ROOT).parts[0] for path in ROOT.rglob("*/*.py")}
    assert rooms == set(MAY_TOUCH)


@pytest.mark.parametrize("room", sorted(MAY_TOUCH))
def test_a_room_touches_only_what_is_below_it(room: str) -> None:
    wrong = {other: where for other, where in rooms_touched(room).items() if other not in MAY_TOUCH[room] | EVERY}
    assert wrong == {}


def test_of_facts_the_judgement_alone_knows_the_plan() -> None:
    users = [path.name for path in (ROOT / "facts").glob("*.py") if any("fleetctl.plan" in n for n in imported(path))]
    assert users == ["assess.py"]


def test_the_guard_uses_of_the_program_on_a_box_what_lands_with_it() -> None:
    used = {
        name for path in (ROOT / "guard").glob("*.py") for name in imported(path) if name.startswith("fleetctl.onbox")
    }
    files = {f"fleetctl.onbox.{name}" for name in SHARED}
    assert used <= files
    below = {name for one in SHARED for name in imported(ROOT / "onbox" / f"{one}.py") if name.startswith("fleetctl")}
    assert below <= files


def test_what_runs_on_a_box_needs_the_standard_library_alone() -> None:
    for folder in (ROOT / "onbox", ROOT / "guard", ROOT.parent / "systemd"):
        own = ("fleetctl.onbox", "fleetctl.guard", "rank_peer")
        for path in folder.glob("*.py"):
            names = {name for name in imported(path) if not name.startswith(own)}
            assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names, path
