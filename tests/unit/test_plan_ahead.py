"""What a plan does ahead of the gap: weights looked at, and read into the page cache where there is room."""

from __future__ import annotations

from typing import Any

import pytest
from planned import GIB, boxes_in, layout, plan

from fleetctl.facts.types import PathFacts

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
