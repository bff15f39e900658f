"""Turns that are taken back: one at a time, and not at all where the copy that was to serve meanwhile is missing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from planned import boxes_in, layout, playbook

from fleetctl.errors import MoveStuckError, StepError
from fleetctl.plan.build import build_plan
from fleetctl.plan.types import Plan
from fleetctl.run import execute
from fleetctl.run.control import Control
from fleetctl.run.execute import Execution
from fleetctl.run.journal import History, Journal
from fleetctl.steps.base import Step

BEFORE, AFTER = layout("replicas"), layout("replicas", models__qwen__arguments=["--seed", "7"])
A, B = "replicas/qwen@a", "replicas/qwen@b"


def apply_plan() -> Plan:
    return build_plan(
        source=BEFORE,
        target=AFTER,
        observed=boxes_in(BEFORE),
        questions={},
        playbook=playbook("rolling"),
        operation="apply",
        lead="a",
        move="m",
        generation=2,
        previous=1,
    )


def in_hand(
    monkeypatch: pytest.MonkeyPatch, calls: list[str], *, fails: str = "", done: set[str] | None = None
) -> Execution:
    """An execution of the plan whose steps only say what is called; one undo fails."""

    class Saying(Step):
        once_a_turn = True

        def do(self, context: Any, step: Any) -> dict[str, Any]:
            calls.append(step.id)
            return {}

        def undo(self, context: Any, step: Any, prior: Any) -> dict[str, Any]:
            if step.id == fails:
                raise StepError("it does not come back")
            calls.append(step.id)
            return {}

    plan = apply_plan()
    monkeypatch.setattr(execute, "KINDS", {step.kind: Saying() for step in plan.steps})
    begun = {step.id for step in plan.steps if step.stage == "roll"} if done is None else done
    history = History(plan, {}, priors={name: {} for name in begun}, results={name: {} for name in begun})
    reach: Any = SimpleNamespace(boots={}, boxes={})
    lead: Any = {"a": SimpleNamespace(call=lambda op, **args: {})}
    return Execution(
        plan,
        Journal(lead, plan),
        reach,
        fill=lambda file: "",
        listen=lambda event: None,
        control=Control(),
        history=history,
    )


def test_the_last_turn_is_taken_back_before_anything_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    in_hand(monkeypatch, calls).undo("because")
    assert len(calls) == 18
    assert [name.rsplit(".", 1)[1] for name in calls] == [B] * 9 + [A] * 9
    assert calls[0] == f"roll.open.{B}" and calls[-1] == f"roll.hold.{A}"


def test_the_first_copy_goes_on_serving_when_the_second_cannot_be_brought_back(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    with pytest.raises(MoveStuckError) as stuck:
        in_hand(monkeypatch, calls, fails=f"roll.stop_engine.{B}").undo("because")
    assert not [name for name in calls if name.endswith(A)]
    assert f"{A} is left as it is" in str(stuck.value)


def test_a_turn_that_is_over_is_not_repeated_when_a_cut_off_move_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    done = {step.id for step in apply_plan().steps if step.turn == 1 or step.stage == "prepare"}
    done |= {f"roll.{kind}.{B}" for kind in ("hold", "drain", "stop_engine")}
    execution = in_hand(monkeypatch, calls, done=done)
    execution.run()
    turns = [name for name in calls if name.startswith("roll.")]
    assert not [name for name in turns if name.endswith(A)]
    # The other was in the middle of its turn: that is gone through again, as its box may have been rebooted meanwhile.
    assert turns[0] == f"roll.hold.{B}"
