"""What doctor's codes are: the same for ever, and explained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from examined import scene

from fleetctl.doctor import explain, families
from fleetctl.doctor.examine import examine
from fleetctl.doctor.families import FAMILIES
from fleetctl.doctor.scene import Scene
from fleetctl.errors import BoxError, FleetError
from fleetctl.remote.boxes import Boxes


def test_codes_are_unique_and_every_kind_says_all_that_there_is_to_say() -> None:
    known = [kind for family in families.FAMILIES for kind in family.kinds]
    assert len({kind.code for kind in known}) == len(known)
    for kind in known:
        assert kind.title and kind.looks_for and kind.why and kind.fix and kind.source, kind.code
        assert not kind.looks_for.endswith("."), kind.code


def test_the_page_is_the_one_that_the_kinds_make() -> None:
    assert Path("docs/doctor.md").read_text() == explain.page()


def test_a_code_of_lint_is_explained_too() -> None:
    assert explain.explained("h01").code == "H01"


def test_when_a_box_was_asked_is_told_to_whom_it_concerns_and_is_no_word_of_anybody_else() -> None:
    told = {family.name: {"asked_at", "answered_at"} & set(family.told.model_fields) for family in families.FAMILIES}
    assert {name for name, fields in told.items() if fields} == {"box", "memory"}


def test_a_box_that_is_connected_but_told_no_facts_is_asked_nothing() -> None:
    """Its systemd hangs, say: that is told, and what the other boxes have is found all the same."""
    seen = scene()
    there = {name: facts for name, facts in seen.observed.items() if name != "b"}
    asked: list[str] = []

    class Box:
        def __init__(self, name: str) -> None:
            self.name = name

        def call_with(self, op: str, args: dict[str, Any], timeout: float) -> dict[str, Any]:
            asked.append(self.name)
            raise BoxError(self.name, "no answer")

    class All:
        def each(self, ask: Callable[[Any], None]) -> None:
            for name in ("a", "b"):
                ask(Box(name))

    away: dict[str, FleetError] = {"b": BoxError("b", "facts did not answer")}
    partly = Scene(seen.fleet, seen.releases, seen.live, there, away)
    examine(cast(Boxes, All()), partly, FAMILIES)
    assert set(asked) == {"a"}
