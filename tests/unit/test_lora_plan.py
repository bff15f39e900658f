"""The plan of a push and of a removal: what waits for what, and which box is right about the adapters."""

from __future__ import annotations

from typing import Any

import pytest
from planned import boxes_in, layout, office, playbook

from fleetctl.errors import SpecError
from fleetctl.facts.types import Observed
from fleetctl.plan.adapters import NewAdapter, behind, lacking, push_steps, remove_steps
from fleetctl.plan.build import build_plan
from fleetctl.plan.types import Plan, PlannedStep
from fleetctl.run.adapters import model_for

FILES = {"adapter_config.json": [10, "0" * 64], "adapter_model.safetensors": [20, "1" * 64]}
LIVE = layout("replicas", models__qwen__loras={"max_lora_rank": 32})


def told(serial: int, *names: str, broken: dict[str, str] | None = None) -> dict[str, Any]:
    entries = {name: {"digest": "0" * 16, "files": FILES, "rank": 8} for name in names}
    return {"adapters": {"serial": serial, "adapters": {"qwen": entries} if names else {}, "broken": broken or {}}}


def boxes(a: dict[str, Any], b: dict[str, Any]) -> Observed:
    return boxes_in(LIVE, 1, a=a, b=b)


def new(name: str = "x") -> NewAdapter:
    files = {key: (int(size), str(sha)) for key, (size, sha) in FILES.items()}
    return NewAdapter("qwen", name, "f" * 16, files, 8, "/home/me/x")


def layers(steps: tuple[PlannedStep, ...]) -> list[set[str]]:
    """Kinds of steps, those together that wait for the same."""
    found: list[tuple[tuple[str, ...], set[str]]] = []
    for step in steps:
        if not found or found[-1][0] != step.after:
            found.append((step.after, set()))
        found[-1][1].add(step.kind)
    return [kinds for _, kinds in found]


def test_every_box_has_the_files_before_any_engine_loads_them_and_the_proxy_comes_last() -> None:
    steps = push_steps([new()], LIVE, boxes(told(3, "old"), told(3, "old")), by="me", at=1.0)
    assert layers(steps) == [{"preflight"}, {"send_adapters"}, {"note_adapters"}, {"load_adapters"}, {"name_adapters"}]
    assert sorted(step.box for step in steps if step.kind == "load_adapters") == ["a", "b"]
    noted = next(step for step in steps if step.kind == "note_adapters")
    assert (noted.params["serial"], sorted(noted.params["adapters"]["qwen"])) == (4, ["old", "x"])


def test_a_removal_goes_the_other_way_and_files_go_last() -> None:
    steps = remove_steps([("qwen", "old")], LIVE, boxes(told(3, "old"), told(3, "old")))
    kinds = [{"preflight"}, {"note_adapters"}, {"unname_adapters"}, {"unload_adapters"}, {"drop_adapters"}]
    assert layers(steps) == kinds
    assert next(step for step in steps if step.kind == "note_adapters").params["adapters"] == {}


def test_the_box_that_heard_of_the_last_change_is_right() -> None:
    for a, b, late, names in (
        (told(3, "x"), told(3, "x"), [], []),
        (told(3, "x"), told(0), ["b"], ["x"]),
        (told(2, "x", "removed"), told(3, "x"), ["a"], []),
        (told(3, "x"), told(3, "x", broken={"qwen/x": "cut"}), ["b"], ["x"]),
        (told(3, "x", broken={"qwen/x": "cut"}), told(3, "x", broken={"qwen/x": "cut"}), [], []),
    ):
        seen = boxes(a, b)
        assert behind(seen) == late
        assert [one["name"] for box in late for one in lacking(seen, box)] == names


def test_a_push_brings_a_box_that_was_away_what_it_lacks_too() -> None:
    steps = push_steps([new()], LIVE, boxes(told(3, "old"), told(0)), by="me", at=1.0)
    sent = {step.box: [one["name"] for one in step.params["items"]] for step in steps if step.kind == "send_adapters"}
    assert sent == {"a": ["x"], "b": ["x", "old"]}


def move(seen: Observed, book: str = "rolling") -> Plan:
    return build_plan(
        source=LIVE, target=LIVE, observed=seen, questions={}, playbook=playbook(book), operation="apply", lead="a",
        move="m", generation=1, previous=None,
    )  # fmt: skip


def test_an_apply_has_nothing_to_do_where_all_have_them_and_brings_them_where_one_has_not() -> None:
    assert move(boxes(told(3, "x"), told(3, "x"))).nothing_to_do()
    made = move(boxes(told(3, "x"), told(0)))
    brought = [(step.kind, step.box, step.params["engines"]) for step in made.steps if step.kind != "preflight"]
    assert brought == [("bring_adapters", "b", ["replicas/qwen@b"])]


def test_an_engine_that_starts_has_its_adapters_before_it_is_opened() -> None:
    before = layout("split", models__qwen__loras={"max_lora_rank": 32})
    seen = boxes_in(before, 1, a=told(3, "x"), b=told(3, "x"))
    made = build_plan(
        source=before, target=LIVE, observed=seen, questions={}, playbook=playbook("cutover"), operation="cutover",
        lead="a", move="m", generation=2, previous=1,
    )  # fmt: skip
    steps = {step.id: step.after for step in made.steps}
    assert "prove.load_adapters.replicas/qwen@b" in steps["open.open.replicas/qwen@b"]
    assert "prove.gate.replicas/qwen@b" in steps["prove.load_adapters.replicas/qwen@b"]


@pytest.mark.parametrize(
    ("loras", "model", "said"),
    [
        (None, None, "no model of the fleet takes adapters"),
        (None, "qwne", "there is no model qwne\n  did you mean qwen?"),
        ({"max_lora_rank": 32}, "qwne", "there is no model qwne\n  did you mean qwen?"),
    ],
)
def test_a_model_that_was_typed_wrong_is_told_before_anything_else(
    loras: dict[str, Any] | None, model: str | None, said: str
) -> None:
    with pytest.raises(SpecError) as caught:
        model_for(office(models__qwen__loras=loras), model)
    assert str(caught.value).startswith(said)
