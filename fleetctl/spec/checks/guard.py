"""Checks of ``guard``."""

from __future__ import annotations

from collections.abc import Iterator

from fleetctl.spec.checks.view import View
from fleetctl.spec.problems import Path, Problem, did_you_mean, shown
from fleetctl.spec.units import gib

_SHORTEST = {"silent": 5.0, "answer_within": 5.0}
_SMALLEST = 64 * 2**20


def section(view: View) -> Iterator[Problem]:
    """``guard`` is a mapping; with nothing in it, ``{}``, there is a guard with the settings that fit most boxes."""
    if "guard" in view.mapping() and view.get("guard") is None:
        message = "this is empty; write guard: {} for a guard on every box with an engine, or take it out"
        yield view.problem(("guard",), message, key=True)


def marks(view: View) -> Iterator[Problem]:
    """The guard acts while something is left: ``memory_low`` is at least 64MiB and at most half of every reserve."""
    low = view.size("guard", "memory_low")
    if low is None:
        return
    path: Path = ("guard", "memory_low")
    if low < _SMALLEST:
        yield view.problem(path, f"{shown(view.get(*path))} is too little to act in; write at least 64MiB")
        return
    for box in view.mapping("boxes"):
        reserve = view.size("boxes", box, "reserve")
        if reserve is not None and low > reserve / 2:
            message = (
                f"{gib(low)} is more than half of what {box} keeps for everything else ({gib(reserve)}): the guard "
                f"would act in quiet times; write at most {gib(reserve / 2)}, or leave it out"
            )
            yield view.problem(path, message)
            return


def times(view: View) -> Iterator[Problem]:
    """The guard gives an engine time: ``silent`` and ``answer_within`` are at least 5s, ``idle`` 10s or 0."""
    for key, least in _SHORTEST.items():
        value = view.duration("guard", key)
        if value is not None and value < least:
            yield view.problem(("guard", key), f"{value:g} s is too short; write at least {least:g}s")
    idle = view.duration("guard", "idle")
    if idle is not None and 0 < idle < 10:
        yield view.problem(("guard", "idle"), f"{idle:g} s is too short; write at least 10s, or 0 for never")


def protected(view: View) -> Iterator[Problem]:
    """What services keep is named once per service, for boxes that exist, and fits into the reserve of each box."""
    boxes = view.mapping("boxes")
    taken: dict[str, int] = {}
    seen: set[tuple[str, str]] = set()
    for number, entry in enumerate(view.items("guard", "protect")):
        if not isinstance(entry, dict):
            continue
        path: Path = ("guard", "protect", number)
        size, unit = view.size(*path, "memory"), view.text(*path, "unit")
        named = view.texts(*path, "boxes")
        for where, name in named:
            if boxes and name not in boxes:
                yield view.problem(where, f"there is no box {shown(name)}; {did_you_mean(name, boxes)}")
        for box in [name for _, name in named] if named else boxes:
            if unit is not None and (unit, box) in seen:
                yield view.problem(path, f"{unit} is named twice for {box}; keep one")
            seen.add((unit or "", box))
            reserve = view.size("boxes", box, "reserve")
            taken[box] = taken.get(box, 0) + (size or 0)
            if reserve is not None and size and taken[box] > reserve >= taken[box] - size:
                message = (
                    f"services would keep {gib(taken[box])} of {box}, whose reserve is {gib(reserve)}; "
                    f"write less, or raise the reserve"
                )
                yield view.problem((*path, "memory"), message)


CHECKS = (section, marks, times, protected)
