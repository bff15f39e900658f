"""What gates with a score want of a new build, and when it is not asked again."""

from __future__ import annotations

from typing import Any

import pytest
from planned import BEFORE, boxes_in, layout, office, plan

from fleetctl.facts.types import Observed
from fleetctl.plan.difference import engine_name
from fleetctl.plan.scores import tasks_key, wanted_scores
from fleetctl.plan.types import Plan
from fleetctl.render.layout import render_layout
from fleetctl.render.release import Release

SPLIT = layout("split")


TASKS = {"tasks.jsonl": '{"prompt": "2+2?", "score": "numeric", "expected": 4}\n'}
KEY = tasks_key("tasks.jsonl", TASKS["tasks.jsonl"])


def scores(release: Release, suite: str = "tools", **points: float) -> dict[str, Any]:
    """Facts that a build of each box (``a``, ``b``) scored so much."""
    told = {}
    for engine in release.engines:
        build = engine_name(engine, engine.head, release.layout)
        if engine.head.box in points:
            record = {"suite": suite, "build": build, "score": points[engine.head.box], "at": 1.0}
            told[f"{suite} {build}"] = record
    return told


def moved(target: Release, seen: Observed, operation: str = "cutover", source: Release = SPLIT) -> Plan:
    return plan(source, target, seen, book=operation)


def wanted(made: Plan, suite: str = "tools") -> list[float | None]:
    return [wanted_scores(step.params).get(suite) for step in made.steps if step.kind == "gate"]


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
    for operation, params in (("rollback", []), ("cutover", ["long_context", "scores"])):
        made = moved(target, boxes_in(SPLIT, 1), operation)
        asked = [sorted({*step.params} - {"engine"}) for step in made.steps if step.kind == "gate"]
        assert asked == [params, params]


def test_the_first_layout_is_compared_with_nothing() -> None:
    target = layout("replicas", gates={"tools": {"no_worse_than": "current"}})
    made = moved(target, boxes_in(BEFORE, None), source=BEFORE)
    assert wanted(made) == [0, 0]
    assert not any("tool-use score" in text for text in made.warnings)


def with_tasks(**gate: Any) -> Release:
    """The replicas, with a gate that asks a file of tasks."""
    fleet = office(gates={"tools": {"at_least": 10}, "evaluations": [{"file": "some/tasks.jsonl", **gate}]})
    return render_layout(fleet, "replicas", tasks={"some/tasks.jsonl": TASKS["tasks.jsonl"]})


@pytest.mark.parametrize(
    ("gate", "now", "floor"),
    [
        ({}, None, 0),
        ({"at_least": 80}, 91, 80),
        ({"no_worse_than": "current"}, 91, 88),
        ({"no_worse_than": "current"}, None, 0),
        ({"models": ["qwen"], "no_worse_than": "current", "tolerance": 0}, 91, 91),
        ({"models": ["other"], "at_least": 80}, 91, None),
    ],
)
def test_a_file_of_tasks_has_a_score_of_its_own(gate: dict[str, Any], now: float | None, floor: float | None) -> None:
    known = {} if now is None else scores(SPLIT, KEY, a=now)
    made = moved(with_tasks(**gate), boxes_in(SPLIT, 1, a={"scores": known}))
    assert (wanted(made, KEY), wanted(made)) == ([floor, floor], [10, 10])
    compared = now is None and "no_worse_than" in gate
    assert (
        any("no score in tasks.jsonl, as it is now, of what serves qwen" in text for text in made.warnings) == compared
    )


def test_another_text_is_another_suite() -> None:
    assert tasks_key("a/tasks.jsonl", "x") != tasks_key("a/tasks.jsonl", "y")
    made = moved(with_tasks(at_least=80), boxes_in(SPLIT, 1, a={"scores": scores(with_tasks(), "tasks.jsonl@0", a=99)}))
    assert wanted(made, KEY) == [80, 80]


def test_a_build_that_has_passed_the_tasks_is_not_asked_them_again() -> None:
    target = with_tasks(at_least=80)
    made = moved(target, boxes_in(SPLIT, 1, a={"scores": scores(target, KEY, a=86)}))
    assert wanted(made, KEY) == [None, 80]
    told = [step.summary for step in made.steps if step.kind == "gate"]
    assert ["tasks.jsonl (86 is known)" in told[0], "tasks.jsonl (at least 80 of 100)" in told[1]] == [True, True]


def test_a_plan_of_an_earlier_version_still_has_its_test_of_tool_use() -> None:
    assert wanted_scores({"engine": "x", "tools": 72.0, "tools_before": 75.0}) == {"tools": 72.0}
