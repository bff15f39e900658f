"""Make before break: when old and new engines fit together, what the plan does then, and why it does not."""

from __future__ import annotations

from typing import Any

import pytest
from planned import GIB, OFFICE, boxes_in, layout, office, playbook, unit

from fleetctl.capacity.beside import fit_beside
from fleetctl.errors import RefusedError
from fleetctl.facts.types import Observed
from fleetctl.plan.beside import why_not_beside
from fleetctl.plan.build import build_plan
from fleetctl.plan.difference import compare
from fleetctl.plan.types import Plan
from fleetctl.remote.boxes import Boxes
from fleetctl.render.ports import check_ports, engine_ports
from fleetctl.render.release import Release
from fleetctl.run.planning import Look, Subject, plan_cutover


def copies(share_a: float | None, share_b: float | None, **more: Any) -> dict[str, Any]:
    return {
        "copies": {
            box: {} if share is None else {"gpu_memory_utilization": share}
            for box, share in (("a", share_a), ("b", share_b))
        },
        **more,
    }


def two(old: dict[str, Any], new: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"models__qwen__weights_size": "20GiB", "layouts": {"old": {"qwen": old}, "new": {"qwen": new}}, **more}


FIT = two(copies(0.3, 0.4), copies(0.45, 0.45))


def asked(changes: dict[str, Any], **facts: Any) -> tuple[Release, Release, Observed]:
    source, target = layout("old", **changes), layout("new", **changes)
    return source, target, boxes_in(source, **facts)


def reason(changes: dict[str, Any], **facts: Any) -> str | None:
    source, target, observed = asked(changes, **facts)
    return why_not_beside(source, target, observed, compare(source, target, observed, 2))


def plan_of(changes: dict[str, Any]) -> Plan:
    source, target, observed = asked(changes)
    return build_plan(
        source=source,
        target=target,
        observed=observed,
        questions={},
        playbook=playbook("make_before_break"),
        operation="cutover",
        lead="a",
        move="m",
        generation=2,
        previous=1,
        beside=True,
    )


def test_shares_that_leave_the_reserve_fit_together() -> None:
    assert reason(FIT) is None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (two(copies(0.3, 0.4), copies(0.46, 0.45)), "do not fit a together: 38.4 GiB + 58.9 GiB = 97.3 GiB, 96.0 GiB"),
        (two(copies(None, 0.4), copies(0.45, 0.45)), "do not fit a together: 96.0 GiB + 57.6 GiB = 153.6 GiB"),
        (
            two(copies(0.3, 0.4, port=8000), copies(0.45, 0.45, port=8000)),
            "old/qwen@a and new/qwen@a both listen on port 8000 of a: give one of them another port",
        ),
    ],
)
def test_what_does_not_fit_is_told_with_the_sum_or_the_port(changes: dict[str, Any], told: str) -> None:
    why = reason(changes)
    assert why is not None
    assert told in why


def test_memory_that_is_not_there_now_stands_in_the_way() -> None:
    why = reason(FIT, b={"memory": {"total": 128 * GIB, "available": 50 * GIB}})
    assert why == "50.0 GiB are available on b now and the new engine asks for 57.6 GiB: 7.6 GiB missing"


def test_a_foreign_engine_that_runs_has_to_stop_first() -> None:
    changes = {**FIT, "superseded": ["old.service"]}
    why = reason(changes, b={"units": {**asked(FIT)[2]["b"].units, "old.service": unit()}})
    assert why == "old.service on b has to stop first, and what memory it holds is not known"


def test_an_old_unit_that_still_conflicts_is_renewed_first() -> None:
    source, _, observed = asked(two(copies(0.3, 0.4), copies(0.6, 0.6)))
    target = layout("new", **FIT)
    why = why_not_beside(source, target, observed, compare(source, target, observed, 2))
    assert why == (
        "fleetctl-old-qwen.service on a has Conflicts=fleetctl-new-qwen.service (fleetctl apply renews the files)"
    )


def test_the_old_engines_serve_until_every_new_one_is_open() -> None:
    plan = plan_of(FIT)
    kinds = [(step.stage, step.kind) for step in plan.steps]
    assert kinds.index(("hand_over", "hold")) > max(i for i, kind in enumerate(kinds) if kind == ("open", "open"))
    assert kinds.index(("stop", "stop_engine")) > kinds.index(("hand_over", "drain"))
    assert plan.gap.expected == 0
    hold = next(step for step in plan.steps if step.kind == "hold")
    assert hold.summary == "new requests go to the new engines: drain qwen/old-a, qwen/old-b"
    rooms = {step.box: step.params["need"] for step in plan.steps if step.kind == "await_room"}
    assert rooms == {"a": int(0.45 * 128 * GIB), "b": int(0.45 * 128 * GIB)}
    free = [step.params for step in plan.steps if step.kind == "await_free"]
    assert [(params["need"], params["ports"], params["next"]) for params in free] == [(0, [], [])] * 2


def test_units_conflict_exactly_where_they_do_not_fit() -> None:
    def conflicts(changes: dict[str, Any]) -> set[str]:
        release = layout("new", **changes)
        return {box for box, files in release.files.items() if any("Conflicts=" in file.content for file in files)}

    assert conflicts(FIT) == set()
    assert conflicts(two(copies(0.3, 0.5), copies(0.45, 0.45))) == {"b"}
    assert conflicts(two(copies(None, 0.4), copies(0.45, 0.45))) == {"a"}
    assert conflicts(two(copies(0.3, 0.4, port=8000), copies(0.45, 0.45, port=8000))) == {"a", "b"}


def test_layouts_that_fit_together_get_ports_of_their_own_and_others_keep_the_first() -> None:
    fleet = office(**FIT)
    assert fit_beside(fleet, "a", "old", "new")
    assert (engine_ports(fleet, "old"), engine_ports(fleet, "new")) == ({"qwen": 8000}, {"qwen": 8001})
    apart = office()
    assert not fit_beside(apart, "a", "split", "replicas")
    assert engine_ports(apart, "replicas") == {"qwen": 8000}


SMALL = {"copies": {"b": {"gpu_memory_utilization": 0.1}}}


@pytest.mark.parametrize(
    "more",
    [
        {"proxy": {"box": "a", "port": 8001}},
        {"guard": {"port": 8001}},
        {"layouts__new__other": {**SMALL, "port": 8001}, "layouts__new__third": {**SMALL, "port": 8003}},
    ],
)
def test_a_port_of_its_own_is_none_that_the_file_gives_to_something_else(more: dict[str, Any]) -> None:
    models = {name: {**OFFICE["models"]["qwen"], "weights_size": "4GiB"} for name in ("qwen", "other", "third")}
    layouts = {
        "old": {"qwen": {"copies": {"b": {"gpu_memory_utilization": 0.3}}}},
        "new": {"qwen": {"copies": {"a": {}, "b": {"gpu_memory_utilization": 0.3}}}},
    }
    fleet = office(models=models, layouts=layouts, **more)
    check_ports(fleet, "new")


def test_a_playbook_of_its_own_does_not_start_engines_beside_others_where_they_do_not_fit() -> None:
    def planned(layouts: dict[str, Any]) -> Plan:
        changes = {**layouts, "models__qwen__weights": "org/qwen"}  # a hub id: no box is asked for its files
        _, target, observed = asked(changes)
        subject = Subject(office(**changes), "", Boxes({}))
        return plan_cutover(subject, target, Look({}, observed), lambda name: playbook("make_before_break"))

    assert planned(FIT).gap.expected == 0
    with pytest.raises(RefusedError, match=r"do not fit a together: 96\.0 GiB"):
        planned(two(copies(None, 0.4), copies(0.45, 0.45)))
