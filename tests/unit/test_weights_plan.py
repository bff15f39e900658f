"""Which box sends, which get, how fast, and what is refused: decided from what the boxes said."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
from planned import layout
from rich.console import Console

from fleetctl.cli.show_weights import show_found
from fleetctl.errors import RefusedError, SpecError
from fleetctl.plan.weights import SPARING, Lying, Wanted, disk_refusals, push_steps, share_of, sparing, wanted_by
from fleetctl.run.weights import disagreements, parse_limit, source_of

GB = 10**9
PLACE = {"folder": "/models/qwen"}


def lying(state: str, **more: Any) -> Lying:
    usual = {"bytes": 71 * GB, "files": 12, "free": 500 * GB, "tree": "one" if state in ("proven", "differs") else None}
    return Lying.model_validate({"state": state, **({} if state == "missing" else usual), "free": 500 * GB, **more})


def wanted(box: str) -> Wanted:
    return Wanted(model="qwen", box=box, place=PLACE)


def found(**boxes: Lying) -> list[tuple[Wanted, Lying]]:
    return [(wanted(box), one) for box, one in boxes.items()]


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (PLACE, "`fleetctl weights pull qwen --from FOLDER` fetches them"),
        ({"repo": "org/qwen", "revision": None}, "`fleetctl weights pull qwen` fetches them"),
    ],
)
def test_what_helps_is_a_command_that_can_be_run_as_it_stands(place: dict[str, Any], said: str) -> None:
    out = Console(file=io.StringIO(), width=200)
    at = Wanted(model="qwen", box="a", place=place)
    show_found([(at, lying("missing"))], {"qwen": ["it is not there"]}, out)
    assert isinstance(out.file, io.StringIO) and said in out.file.getvalue()


def test_weights_are_wanted_where_a_layout_has_an_engine_of_the_model_once_for_each_place() -> None:
    made = wanted_by([layout("split"), layout("replicas")])
    assert [(one.model, one.box, one.place) for one in made] == [("qwen", "a", PLACE), ("qwen", "b", PLACE)]
    assert made[0].python == "/opt/vllm/bin/python"


def test_a_container_that_fetches_from_a_hub_keeps_what_it_fetches_to_itself() -> None:
    hub = {"models__qwen__weights": "org/qwen", "models__qwen__launch": {"image": "vllm/vllm-openai:v0.11"}}
    assert wanted_by([layout("split", **hub)]) == []


@pytest.mark.parametrize(
    ("boxes", "source"),
    [
        ({"a": lying("missing"), "b": lying("proven")}, "b"),
        ({"a": lying("unproven"), "b": lying("missing")}, "a"),
        ({"a": lying("unproven"), "b": lying("proven")}, "b"),
        ({"a": lying("differs"), "b": lying("proven")}, "b"),
        ({"a": lying("broken"), "b": lying("touched")}, "b"),
    ],
)
def test_the_box_that_has_it_right_sends(boxes: dict[str, Lying], source: str) -> None:
    assert source_of("qwen", found(**boxes), None)[0].box == source


@pytest.mark.parametrize(
    ("boxes", "named", "told"),
    [
        ({"a": lying("proven"), "b": lying("proven", tree="two")}, None, "are not the same on a (found), b (found)"),
        ({"a": lying("missing"), "b": lying("broken", broken=["x is short"])}, None, "no box has the weights of qwen"),
        ({"a": lying("missing"), "b": lying("proven")}, "a", "a cannot send the weights of qwen: /models/qwen is not"),
        ({"a": lying("differs", why="x differs"), "b": lying("proven")}, "a", "a cannot send .*: x differs"),
    ],
)
def test_where_it_is_not_clear_who_is_right_nothing_is_sent(
    boxes: dict[str, Lying], named: str | None, told: str
) -> None:
    with pytest.raises(RefusedError, match=told.replace("(", r"\(").replace(")", r"\)")):
        source_of("qwen", found(**boxes), named)


def test_all_disks_are_looked_at_before_anything_is_sent() -> None:
    targets = {box: (wanted(box), lying("missing")) for box in ("b", "c")}
    addresses = {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}
    steps = push_steps(wanted("a"), lying("unproven"), targets, addresses=addresses, share=100e6, streams=None)
    assert [(step.kind, step.box) for step in steps] == [
        ("prove_weights", "a"),
        ("weights_room", "b"),
        ("weights_room", "c"),
        ("send_weights", "b"),
        ("send_weights", "c"),
    ]
    rooms = {step.id for step in steps if step.kind == "weights_room"}
    for step in steps[3:]:
        assert set(step.after) == rooms and step.params["limit"] == 100e6
        assert "12 files, 66.1 GiB, at most 100 MB/s" in step.summary
        assert step.params["addresses"] == {"a": "10.0.0.1", step.box: addresses[step.box]}
    assert "66.1 GiB are read" in steps[0].summary


def test_a_disk_that_is_too_small_is_named_with_what_is_missing() -> None:
    targets = {
        "b": (wanted("b"), lying("missing", free=70 * GB)),
        "c": (wanted("c"), lying("missing", free=70 * GB, staged=5 * GB)),
    }
    (told,) = disk_refusals([(wanted("a"), lying("proven"), targets)])
    assert told == "b: /models/qwen needs 66.1 GiB on the disk and 65.2 GiB are free: 954 MiB are missing"


@pytest.mark.parametrize(("devices", "refused"), [((1, 1), 1), ((1, 2), 0)])
def test_models_of_one_push_that_fit_a_disk_one_by_one_have_to_fit_it_together(
    devices: tuple[int, int], refused: int
) -> None:
    pushes = [
        (wanted("a"), lying("proven"), {"b": (wanted("b"), lying("missing", free=100 * GB, device=device))})
        for device in devices
    ]
    told = disk_refusals(pushes)
    assert len(told) == refused and all("27.0 GiB are free beside the others" in text for text in told)


def test_boxes_that_are_proven_and_not_alike_are_a_problem_with_the_names_of_the_files() -> None:
    one = lying("proven", sums={"config.json": "aa", "m.safetensors": "bb"})
    other = lying("proven", tree="two", sums={"config.json": "aa", "m.safetensors": "cc"})
    assert disagreements(found(a=one, b=one)) == {}
    assert disagreements(found(a=one, b=other)) == {"qwen": ["b: not the same as on a: m.safetensors"]}
    assert disagreements(found(a=lying("missing"), b=one)) == {"qwen": ["a: /models/qwen is not there"]}


@pytest.mark.parametrize(("text", "rate"), [("2GB/s", 2e9), ("100MB", 1e8), ("none", math.inf), (None, None)])
def test_limits_are_bytes_a_second(text: str | None, rate: float | None) -> None:
    assert parse_limit(text) == rate


@pytest.mark.parametrize("text", ["fast", "2G/s", "5kB/s", ""])
def test_what_is_no_limit_is_said_so(text: str) -> None:
    with pytest.raises(SpecError, match="--limit"):
        parse_limit(text)


@pytest.mark.parametrize(
    ("wished", "serving", "transfers", "each"),
    [
        (None, ["qwen"], 1, SPARING),
        (None, ["qwen"], 5, SPARING / 5),
        (None, [], 5, None),
        (300e6, [], 3, 100e6),
        (300e6, ["qwen"], 3, 100e6),
        (math.inf, ["qwen"], 3, None),
        (300e6, [], 0, 300e6),
    ],
)
def test_all_transfers_of_a_command_share_its_limit_whatever_models_they_are_of(
    wished: float | None, serving: list[str], transfers: int, each: float | None
) -> None:
    assert share_of(wished, serving, transfers) == each
    assert bool(sparing(wished, serving)) == (wished is None and bool(serving))
