"""What the gate of tool use wants of a new build, and when it is not asked again."""

from __future__ import annotations

from typing import Any

import pytest
from planned import BEFORE, boxes_in, layout, plan

from fleetctl.facts.types import Observed
from fleetctl.plan.difference import engine_name
from fleetctl.plan.types import Plan
from fleetctl.render.release import Release

SPLIT = layout("split")


def scores(release: Release, **points: float) -> dict[str, Any]:
    """Facts that a build of each box (``a``, ``b``) scored so much."""
    told = {}
    for engine in release.engines:
        build = engine_name(engine, engine.head, release.layout)
        if engine.head.box in points:
            record = {"suite": "tools", "build": build, "score": points[engine.head.box], "at": 1.0}
            told[f"tools {build}"] = record
    return told


def moved(target: Release, seen: Observed, operation: str = "cutover", source: Release = SPLIT) -> Plan:
    return plan(source, target, seen, book=operation)


def wanted(made: Plan) -> list[float | None]:
    return [step.params.get("tools") for step in made.steps if step.kind == "gate"]


@pytest.mark.parametrize(
    ("gate", "now", "floors"),
    [
        (None, 75, [None, None]),
        ({}, None, [0, 0]),
        ({"at_least": 80}, 75, [80, 80]),
        ({"no_worse_than": "current"}, 75, [72, 72]),
        ({"no_worse_than": "current", "tolerance": 0}, 75, [75, 75]),
        ({"no_worse_than": "current", "at_least": 80}, 75, [80, 80]),
        ({"no_worse_than": "current", "at_least": 10}, None, [10, 10]),
    ],
)
def test_a_new_build_has_to_be_as_good_as_the_file_says(
    gate: dict[str, Any] | None, now: float | None, floors: list[float | None]
) -> None:
    target = layout("replicas", gates={"tools": gate} if gate is not None else {})
    known = {} if now is None else scores(SPLIT, a=now)
    made = moved(target, boxes_in(SPLIT, 1, a={"scores": known}))
    assert wanted(made) == floors
    unknown = now is None and gate is not None and "no_worse_than" in gate
    assert any("no tool-use score of what serves qwen now is known" in text for text in made.warnings) == unknown


def test_a_build_that_has_passed_is_not_asked_again_and_one_that_is_too_bad_is() -> None:
    target = layout("replicas", gates={"tools": {"at_least": 80}})
    made = moved(target, boxes_in(SPLIT, 1, a={"scores": scores(target, a=86, b=60)}))
    assert wanted(made) == [None, 80]
    assert "tool use (86 is known)" in next(step.summary for step in made.steps if step.kind == "gate")


def test_nothing_closes_the_way_back_or_holds_it_up() -> None:
    target = layout("replicas", gates={"tools": {"at_least": 80}, "long_context": {}})
    for operation, params in (("rollback", []), ("cutover", ["long_context", "tools"])):
        made = moved(target, boxes_in(SPLIT, 1), operation)
        asked = [sorted({*step.params} - {"engine"}) for step in made.steps if step.kind == "gate"]
        assert asked == [params, params]


def test_the_first_layout_is_compared_with_nothing() -> None:
    target = layout("replicas", gates={"tools": {"no_worse_than": "current"}})
    made = moved(target, boxes_in(BEFORE, None), source=BEFORE)
    assert wanted(made) == [0, 0]
    assert not any("tool-use score" in text for text in made.warnings)
