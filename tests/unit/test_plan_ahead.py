"""What a plan does ahead of the gap: weights looked at, and read into the page cache where there is room."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from planned import GIB, boxes_in, layout, plan

from fleetctl.errors import StepError
from fleetctl.facts.types import PathFacts
from fleetctl.plan.ahead import verify_weights
from fleetctl.plan.difference import compare
from fleetctl.plan.draft import Move
from fleetctl.plan.types import PlannedStep
from fleetctl.steps.ahead import VerifyWeights
from fleetctl.steps.base import Context

SPLIT, COPIES = layout("split"), layout("replicas")


def seen(weights: int, **memory: int) -> Any:
    facts = {
        "paths": {"/models/qwen": PathFacts(kind="folder", size=weights * GIB)},
        "memory": {"total": 128 * GIB, "available": 120 * GIB, **{k: v * GIB for k, v in memory.items()}},
    }
    return boxes_in(SPLIT, a=facts, b=facts)


def kinds(made: Any) -> list[tuple[str, str]]:
    return [(step.kind, step.box) for step in made.steps if step.stage == "prepare"]


def test_weights_are_verified_on_every_box_on_which_an_engine_starts() -> None:
    made = plan(SPLIT, COPIES, seen(71))
    assert [box for kind, box in kinds(made) if kind == "verify_weights"] == ["a", "b"]


def test_weights_are_read_ahead_only_where_cuda_still_sees_the_engines_share_free() -> None:
    # a: 96 GiB share + 32 GiB reserve + 71 GiB are too much; with 200 GiB in all they are not.
    made = plan(SPLIT, COPIES, seen(71))
    assert "read_ahead" not in dict(kinds(made))
    assert "weights are not read ahead: 71.0 GiB of weights, 96.0 GiB for the engine" in made.gap.why
    assert "more than a has" in made.gap.why
    wide = plan(SPLIT, COPIES, seen(71, total=200))
    assert [box for kind, box in kinds(wide) if kind == "read_ahead"] == ["a", "b"]
    assert "read ahead" not in wide.gap.why


@pytest.mark.parametrize(("available", "read"), [(60, []), (80, ["a", "b"])])
def test_weights_are_not_read_into_memory_that_others_use(available: int, read: list[str]) -> None:
    made = plan(SPLIT, COPIES, seen(71, total=200, available=available))
    assert [box for kind, box in kinds(made) if kind == "read_ahead"] == read


def test_a_first_layout_has_nothing_to_wait_behind_and_reads_nothing_ahead() -> None:
    from planned import BEFORE

    facts = boxes_in(BEFORE, None, a={"paths": {"/models/qwen": PathFacts(kind="folder", size=GIB)}})
    assert "read_ahead" not in dict(kinds(plan(BEFORE, COPIES, facts)))


def test_weights_of_a_hub_id_are_fetched_with_the_engines_own_python_and_settings() -> None:
    more = {
        "models__qwen__weights": "org/qwen",
        "models__qwen__environment": {"HF_HOME": "/srv/hub", "OMP_NUM_THREADS": "4", "HF_TOKEN": {"env": "TOKEN"}},
    }
    made = plan(layout("split", **more), layout("replicas", **more), boxes_in(layout("split", **more)))
    steps = [step for step in made.steps if step.kind == "fetch_weights"]
    assert [step.box for step in steps] == ["a", "b"]
    params = steps[0].params
    assert (params["python"], params["repo"], params["env"]) == (
        "/opt/vllm/bin/python",
        "org/qwen",
        {"HF_HOME": "/srv/hub"},
    )
    assert params["secrets"] == "/etc/fleetctl/secrets/replicas-qwen.env"
    (place,) = next(step for step in made.steps if step.kind == "verify_weights").params["places"]
    assert place["place"] == {"repo": "org/qwen", "revision": "", "env": {"HF_HOME": "/srv/hub"}}
    assert list(place["others"]) == ["b"]


@pytest.mark.parametrize("lenient", [False, True])
def test_the_way_back_waits_for_no_checksums(lenient: bool) -> None:
    move = Move(SPLIT, COPIES, seen(71), compare(SPLIT, COPIES, seen(71), 2), 2, "a", lenient=lenient)
    drafts = list(verify_weights(move))
    assert [draft.params.get("lenient", False) for draft in drafts] == [lenient] * 2
    assert all(("are whole on" in draft.summary) == lenient for draft in drafts)


@pytest.mark.parametrize(
    ("state", "fault", "says"),
    [
        ("missing", "the weights /m are not there", 0),
        ("broken", "are not complete: a.safetensors", 0),
        ("unproven", "", 1),
        ("touched", "", 1),
        ("proven", "", 0),
    ],
)
def test_weights_that_are_whole_are_enough_for_the_way_back(state: str, fault: str, says: int) -> None:
    box = SimpleNamespace(call=lambda op, **args: [{"state": state, "broken": ["a.safetensors"]}])
    said: list[str] = []
    boxes: Any = {"a": box}
    nothing: Any = None
    context = Context(nothing, boxes, lambda file: "", lambda step, told: said.append(told["log"]))
    params = {"places": [{"model": "qwen", "place": {"folder": "/m"}, "others": {}}], "lenient": True}
    step = PlannedStep(id="s", kind="verify_weights", stage="x", box="a", target="a", params=params, summary="")
    if fault:
        with pytest.raises(StepError, match=fault):
            VerifyWeights().do(context, step)
    else:
        assert VerifyWeights().do(context, step) == {"qwen": {"state": state}}
    assert len(said) == says and all("fleetctl weights verify qwen" in text for text in said)
