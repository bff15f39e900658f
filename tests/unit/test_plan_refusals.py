"""What stands in the way of a move is said before anything changes, with the box and the way out."""

from __future__ import annotations

from typing import Any

import pytest
from planned import BEFORE, COPY, GIB, OFFICE, PROXY, SPLIT, boxes_in, layout, plan, process, unit

from fleetctl.errors import RefusedError
from fleetctl.render.release import Release

SPLIT_LAYOUT, REPLICAS = layout("split"), layout("replicas", superseded=["old.service"])


def on_b(**facts: Any) -> dict[str, Any]:
    return boxes_in(SPLIT_LAYOUT, b=facts)


def with_unit(name: str, seen: Any) -> dict[str, Any]:
    return on_b(units={**boxes_in(SPLIT_LAYOUT)["b"].units, name: seen})


STANDS_IN_THE_WAY = {
    "memory": (
        on_b(memory={"total": 100 * GIB, "available": 90 * GIB}),
        "b: fleet.yaml says memory 128.0 GiB, the box has 100.0 GiB: write memory: 102400MiB",
    ),
    "no program": (
        on_b(paths={"/opt/vllm/bin/vllm": {"kind": "missing"}}),
        "b: /opt/vllm/bin/vllm is not a program there: check launch: of model qwen",
    ),
    "a program that cannot be run": (
        on_b(paths={"/opt/vllm/bin/vllm": {"kind": "file", "executable": False}}),
        "b: /opt/vllm/bin/vllm is not a program there",
    ),
    "no weights": (
        on_b(paths={"/models/qwen": {"kind": "missing"}}),
        "b: the weights /models/qwen of model qwen are not there: `fleetctl weights push qwen` brings them from a box "
        "that has them",
    ),
    "no proxy": (
        boxes_in(SPLIT_LAYOUT, a={"haproxy": None}),
        "a: HAProxy is not installed: fleetctl setup a --only packages",
    ),
    "port": (
        on_b(ports={8000: process(unit_name="jupyter.service")}),
        "b: port 8000 for engine replicas/qwen@b is taken by VLLM::EngineCor (pid 4711, jupyter.service): stop it, ",
    ),
    "port of a process without a unit": (on_b(ports={8000: process()}), "(pid 4711, no unit)"),
    "unit": (
        with_unit(COPY, unit(fragment=f"/etc/systemd/system/{COPY}")),
        f"b: there is a unit {COPY} (/etc/systemd/system/{COPY}) that fleetctl did not write: rename the layout",
    ),
    "disk": (
        on_b(free={"/etc/fleetctl": 4096, "/var/lib/fleetctl": GIB}),
        "b: no space left on the disk of /etc/fleetctl (4 KiB free, 16 MiB wanted)",
    ),
}


@pytest.mark.parametrize("name", list(STANDS_IN_THE_WAY))
def test_it_is_refused_with_the_box_and_the_way_out(name: str) -> None:
    observed, says = STANDS_IN_THE_WAY[name]
    if name == "unit":
        observed["b"] = observed["b"].model_copy(update={"ours": (SPLIT,)})
    with pytest.raises(RefusedError) as caught:
        plan(SPLIT_LAYOUT, REPLICAS, observed)
    assert says in caught.value.message
    assert "nothing was changed" in caught.value.message


@pytest.mark.parametrize(
    "observed",
    [
        on_b(ports={8000: process(engine="split/qwen@0123", unit_name=SPLIT)}),
        on_b(ports={8000: process(unit_name=SPLIT)}),
        on_b(ports={8000: process(unit_name="old.service")}),
        on_b(paths={"/opt/vllm/bin/vllm": {"kind": "file", "executable": True}, "/models/qwen": {"kind": "folder"}}),
        with_unit(COPY, unit("inactive", "")),
    ],
    ids=["our engine", "our unit", "a replaced unit", "all there", "a unit without a file"],
)
def test_what_goes_away_with_the_move_does_not_stand_in_its_way(observed: Any) -> None:
    assert plan(SPLIT_LAYOUT, REPLICAS, observed).steps


def test_every_reason_is_said_at_once() -> None:
    observed = on_b(paths={"/models/qwen": {"kind": "missing"}}, free={"/etc/fleetctl": 0})
    with pytest.raises(RefusedError, match=r"weights .*\n- b: no space"):
        plan(SPLIT_LAYOUT, REPLICAS, observed)


def test_nothing_stands_in_the_way_of_nothing() -> None:
    observed = boxes_in(SPLIT_LAYOUT, b={"free": {"/etc/fleetctl": 0}}, a={"haproxy": None})
    assert plan(SPLIT_LAYOUT, SPLIT_LAYOUT, observed, generation=1).nothing_to_do()


def test_a_proxy_unit_that_somebody_else_wrote_is_not_overwritten() -> None:
    observed = boxes_in(BEFORE, None, a={"units": {PROXY: unit(fragment=f"/etc/systemd/system/{PROXY}")}})
    with pytest.raises(RefusedError, match=f"a: there is a unit {PROXY} .* remove that file"):
        plan(BEFORE, REPLICAS, observed)


def test_boxes_that_the_file_does_not_name_any_more_are_told() -> None:
    observed = {"a": boxes_in(SPLIT_LAYOUT)["a"]}
    solo = layout("solo", layouts={"solo": {"qwen": {"copies": ["a"]}}})
    with pytest.raises(RefusedError, match=r"the live layout, split, uses b, which fleet\.yaml does not name"):
        plan(SPLIT_LAYOUT, solo, observed)
    with pytest.raises(RefusedError, match=r"the layout to move to, split, uses b, which fleet\.yaml does not name"):
        plan(solo, SPLIT_LAYOUT, observed, book="rollback")


@pytest.mark.parametrize(
    ("observed", "says"),
    [
        (
            on_b(mentions=[{"unit": "watch.service", "names": "old.service", "where": "/usr/local/bin/watch"}]),
            "b: watch.service names old.service (in /usr/local/bin/watch)",
        ),
        (on_b(drift=("/etc/fleetctl/bin/rank.py",)), "b: /etc/fleetctl/bin/rank.py was edited or removed"),
        (
            with_unit(SPLIT, unit(drop_ins=("/etc/systemd/system/x.d/y.conf",))),
            f"b: {SPLIT} is overridden by /etc/systemd/system/x.d/y.conf",
        ),
        (on_b(generation=3), "the boxes are not in the same generation (a 1, b 3)"),
    ],
)
def test_what_does_not_stop_a_move_is_known_before_it(observed: Any, says: str) -> None:
    assert any(says in warning for warning in plan(SPLIT_LAYOUT, REPLICAS, observed).warnings)


def test_a_plan_without_anything_odd_has_no_warnings() -> None:
    assert plan(SPLIT_LAYOUT, REPLICAS, boxes_in(SPLIT_LAYOUT)).warnings == ()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({}, "small has no engine for big: such requests wait and get 503"),
        (
            {"proxy__bridge": {"url": "http://10.0.0.9:8000/v1", "model": "m"}},
            "small has no engine for big: such requests go to the bridge",
        ),
        (
            {"models__tiny__served_as": ["tiny", "big"], "models__big__served_as": ["big", "older"]},
            "small has no engine for older: such requests get 404",
        ),
    ],
)
def test_a_layout_without_an_engine_for_what_clients_ask_for_is_known_before_it(more: Any, says: str) -> None:
    model = {**OFFICE["models"]["qwen"], "weights_size": "4GiB"}
    layouts = {"all": {"big": {"copies": ["a"]}}, "small": {"tiny": {"copies": ["a"]}}}
    source, target = (
        layout(name, models={"big": dict(model), "tiny": dict(model)}, layouts=layouts, **more)
        for name in ("all", "small")
    )

    def told(where: Release) -> list[str]:
        return [warning for warning in plan(source, where, boxes_in(source)).warnings if "no engine for" in warning]

    assert (told(target), told(source)) == ([says], [])
