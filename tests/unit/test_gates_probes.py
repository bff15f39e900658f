"""The gate of same answers: who is asked before the move, and what counts as the same."""

from __future__ import annotations

from typing import Any

import pytest
from planned import BEFORE, boxes_in, layout, plan, unit

from fleetctl.engine.client import EngineError
from fleetctl.facts.types import Observed
from fleetctl.gates.probes import PROMPTS, Said, pass_probes
from fleetctl.plan.types import Plan
from fleetctl.render.release import Release
from fleetctl.spec.fleet_gates import SameAnswersGate

SPLIT = layout("split")


@pytest.mark.parametrize(
    ("changed", "at_least", "passes"),
    [(0, 1.0, True), (2, 0.8, True), (3, 0.8, False), (10, 0.0, True), (1, 1.0, False)],
)
def test_the_part_that_is_the_same_has_to_be_large_enough(changed: int, at_least: float, passes: bool) -> None:
    before = [f"answer {number}" for number in range(len(PROMPTS))]
    now = [Said(text + (" indeed" if number < changed else " \n")) for number, text in enumerate(before)]
    gate = SameAnswersGate(at_least=at_least)
    if passes:
        assert pass_probes("x", gate, before, now) == {"same": 1 - changed / 10, "prompts": 10}
        return
    with pytest.raises(EngineError, match=f"{100 - 10 * changed} % of its answers") as failed:
        pass_probes("x", gate, before, now)
    assert "'answer 0', now 'answer 0 indeed'" in failed.value.answer


def moved(source: Release, seen: Observed, operation: str = "cutover", gates: Any = None) -> Plan:
    target = layout("replicas", gates={"same_answers": {}} if gates is None else gates)
    return plan(source, target, seen, book=operation)


@pytest.mark.parametrize(
    ("source", "seen", "operation", "gates", "asked"),
    [
        (SPLIT, boxes_in(SPLIT, 1), "cutover", None, True),
        (SPLIT, boxes_in(SPLIT, 1), "cutover", {}, False),
        (SPLIT, boxes_in(SPLIT, 1), "rollback", None, False),
        (BEFORE, boxes_in(BEFORE, None), "cutover", None, False),
    ],
)
def test_what_serves_is_asked_before_it_is_touched(
    source: Release, seen: Observed, operation: str, gates: Any, asked: bool
) -> None:
    made = moved(source, seen, operation, gates)
    steps = [step for step in made.steps if step.kind == "ask_current"]
    assert [(step.stage, step.box, step.params["model"]) for step in steps] == (
        [("prepare", "a", "qwen")] if asked else []
    )
    assert {"probes" in step.params for step in made.steps if step.kind == "gate"} == {asked}


def test_an_engine_that_does_not_run_is_not_asked() -> None:
    down = {"fleetctl-split-qwen.service": unit(active="failed")}
    seen = boxes_in(SPLIT, 1, a={"units": {**boxes_in(SPLIT, 1)["a"].units, **down}})
    assert [step for step in moved(SPLIT, seen).steps if step.kind == "ask_current"] == []
