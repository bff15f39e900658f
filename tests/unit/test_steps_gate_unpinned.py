"""The step that loads an engine that is not pinned: what counts as failed, and what is left as it was."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from planned import boxes_in, plan
from pooled import pooled

from fleetctl.errors import StepError
from fleetctl.remote.errors import OpFailed
from fleetctl.steps import KINDS
from fleetctl.steps.base import Context
from fleetctl.steps.gate import Gate

PLAN = plan(pooled("replicas"), pooled(gates={"unpinned": True}), boxes_in(pooled("replicas")))
STEP = next(step for step in PLAN.steps if step.kind == "gate_unpinned")
UNIT = "fleetctl-pool-small.service"


class Box:
    """A box whose worker does as it is told; ``wish``: of the model before, ``active``: of its unit after a failure."""

    def __init__(self, *, wish: str | None = None, active: str = "active", loads: bool = True) -> None:
        self.name, self.wish, self.active, self.loads = "a", wish, active, loads
        self.wished: list[str] = []

    def call(self, op: str, **args: Any) -> Any:
        if op == "pool_state":
            return {"state": {"models": {"small": {"engines": [{"name": "small", "wish": self.wish}]}}}}
        if op == "pool_wish":
            assert args["model"] == UNIT
            self.wished.append(args["wish"])
        if op == "await_service" and not self.loads:
            raise OpFailed("a", op, "OpError", f"{UNIT} is not loaded")
        return {UNIT: {"active": self.active}} if op == "unit_states" else ["log"] if op == "logs" else {}


def did(box: Box, monkeypatch: pytest.MonkeyPatch, *answers: Exception | None) -> Any:
    """What the step returns where the gates end like this, one after the other."""
    left = iter(answers)

    def gate(self: object, context: object, step: object) -> dict[str, Any]:
        error = next(left)
        if error is not None:
            raise error
        return {"passed": True}

    monkeypatch.setattr(Gate, "do", gate)
    boxes = cast(Any, {"a": box})
    context = Context(PLAN, boxes, lambda file: "", lambda step, event: None)
    return KINDS["gate_unpinned"].do(context, STEP)


def test_it_is_loaded_and_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    box = Box()
    assert did(box, monkeypatch, None) == {"passed": True}
    assert box.wished == ["load"]


def test_one_that_goes_for_others_while_it_is_asked_is_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    box = Box(active="inactive")
    assert did(box, monkeypatch, StepError("it does not answer"), None) == {"passed": True}
    assert box.wished == ["load", "load"]


def test_one_that_runs_and_fails_its_gates_fails_the_move(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StepError, match="wrong answer"):
        did(Box(), monkeypatch, StepError("wrong answer"))


def test_one_that_an_operator_evicted_stays_out(monkeypatch: pytest.MonkeyPatch) -> None:
    box = Box(wish="evict")
    assert did(box, monkeypatch) == {"left": True}
    assert box.wished == []


def test_one_that_does_not_load_fails_the_move_with_its_log_and_is_wished_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    box = Box(loads=False)
    with pytest.raises(StepError, match="is not loaded"):
        did(box, monkeypatch)
    context = SimpleNamespace(box=lambda step: box, engine=lambda step: PLAN.release.any_engine("pool/small@a"))
    KINDS["gate_unpinned"].undo(cast(Context, context), STEP, {})
    assert box.wished == ["load", "leave"]
