"""The guard in fleet.yaml, in a release, in a plan and in what status says."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from planned import GIB, OFFICE, boxes_in, layout, office, plan, unit

from fleetctl.errors import FleetError, SpecError
from fleetctl.facts.assess import assess
from fleetctl.facts.gather import OOM_DAEMONS, questions
from fleetctl.facts.guards import GuardFacts, guard_problems, told
from fleetctl.plan.difference import compare
from fleetctl.render.names import GUARD_UNIT
from fleetctl.render.release import Release
from fleetctl.spec.load import parse_fleet

PATH = f"/etc/systemd/system/{GUARD_UNIT}"
GUARDED = layout("replicas", guard={})
BARE = layout("replicas")


def on_guard(**more: Any) -> dict[str, dict[str, Any]]:
    """Facts of both boxes when the guard runs."""
    found = {}
    for box, facts in boxes_in(GUARDED).items():
        units = {**facts.units, GUARD_UNIT: unit(fragment=PATH)}
        found[box] = {"units": units, "ours": tuple(units), **more}
    return found


def paths(release: Release, box: str) -> dict[str, str]:
    return {file.path: file.content for file in release.files[box]}


def test_every_box_with_an_engine_gets_the_program_its_unit_and_its_settings() -> None:
    for box, reserve in (("a", 32), ("b", 16)):
        files = paths(GUARDED, box)
        settings = json.loads(files["/etc/fleetctl/guard/settings.json"])
        assert settings["memory_low"] == reserve * GIB // 8
        assert settings["proxies"] == ["10.0.0.1", "10.1.0.1"]
        assert {PATH, "/etc/fleetctl/guard/fleetctl/guard/decide.py"} <= set(files)
    assert not any("guard" in path for box in ("a", "b") for path in paths(BARE, box))


def test_a_service_keeps_its_memory_only_if_the_slice_above_it_does() -> None:
    protect = [{"unit": "a.service", "memory": "2GiB"}, {"unit": "b.service", "memory": "1GiB", "boxes": ["b"]}]
    release = layout("replicas", guard={"protect": protect})
    kept = {path: text for path, text in paths(release, "b").items() if path.endswith(".conf")}
    assert {path.split("/")[-2]: text.split("MemoryMin=")[1].strip() for path, text in kept.items()} == {
        "a.service.d": str(2 * GIB),
        "b.service.d": str(GIB),
        "system.slice.d": str(3 * GIB),
    }
    assert len([path for path in paths(release, "a") if path.endswith(".conf")]) == 2


def test_the_guard_comes_without_touching_an_engine() -> None:
    made = plan(BARE, GUARDED, boxes_in(BARE), book="rolling")
    kinds = {(step.kind, step.box) for step in made.steps}
    assert {("start_guard", "a"), ("start_guard", "b"), ("install_files", "a"), ("enable_units", "b")} <= kinds
    assert not {"stop_engine", "start_engine", "stop_guard", "hold"} & {kind for kind, _ in kinds}
    assert made.gap.expected == 0.0


def test_the_guard_goes_before_its_files() -> None:
    made = plan(GUARDED, BARE, boxes_in(GUARDED, **on_guard()), book="rolling")
    order = [step.kind for step in made.steps if step.box == "b"]
    assert order.index("stop_guard") < order.index("enable_units") < order.index("remove_files")
    assert "start_guard" not in order and "stop_engine" not in order


@pytest.mark.parametrize("book", ["cutover", "make_before_break", "rolling", "rollback"])
def test_new_settings_stop_the_guard_before_its_files_change_and_start_it_after(book: str) -> None:
    target = layout("replicas", guard={"act": "watch"})
    made = plan(GUARDED, target, boxes_in(GUARDED, **on_guard()), book=book)
    order = [step.kind for step in made.steps if step.box == "b"]
    assert order.index("stop_guard") < order.index("install_files") < order.index("start_guard")


def test_a_guard_that_runs_as_it_shall_is_left_alone_and_one_that_does_not_is_missed() -> None:
    observed = boxes_in(GUARDED, **on_guard())
    assert compare(GUARDED, GUARDED, observed, 1).nothing()
    units = {**observed["b"].units, GUARD_UNIT: unit("failed", fragment=PATH)}
    observed["b"] = observed["b"].model_copy(update={"units": units})
    found = assess(observed, "a", "office")
    assert found.problems == [f"b: the guard ({GUARD_UNIT}) does not run"]


def test_status_says_what_the_guard_has_out_and_where_it_still_stands_back() -> None:
    facts = on_guard()
    facts["b"] |= {"guard_out": {"u.service": "it hangs"}, "moving": "20261130T100000Z-abcd"}
    notes = "\n".join(assess(boxes_in(GUARDED, **facts), "a", "office").notes)
    assert "b: the guard has u.service out of the proxy: it hangs" in notes
    assert "b: the end of move 20261130T100000Z-abcd was not heard there" in notes


@pytest.mark.parametrize("name", sorted(OOM_DAEMONS))
def test_others_that_act_on_short_memory_are_named(name: str) -> None:
    facts = on_guard()
    facts["a"]["units"] = {**facts["a"]["units"], name: unit()}
    target = layout("replicas", guard={"act": "watch"})
    told = [text for text in plan(GUARDED, target, boxes_in(GUARDED, **facts)).warnings if name in text]
    assert len(told) == 1 and told[0].startswith(f"a: {name} is active beside the guard: ")


def test_they_are_looked_for_where_there_is_a_guard() -> None:
    assert set(questions(office(guard={}), [GUARDED])["b"]["units"]) >= OOM_DAEMONS
    assert not set(questions(office(), [BARE])["b"]["units"]) & OOM_DAEMONS


@pytest.mark.parametrize(
    ("guard", "words"),
    [
        ({"memory_low": "20GiB"}, "more than half of what a keeps"),
        ({"memory_low": "1MiB"}, "too little to act in"),
        ({"silent": "1s"}, "write at least 5s"),
        ({"idle": "1s"}, "or 0 for never"),
        ({"act": "kill"}, "restart, stop or watch"),
        ({"protect": [{"unit": "db.service", "memory": "40GiB"}]}, "whose reserve is"),
        ({"protect": [{"unit": "db.service", "memory": "1GiB", "boxes": ["x"]}]}, 'there is no box "x"'),
        ({"protect": [{"unit": "db.service", "memory": "1GiB"}] * 2}, "named twice"),
        ({"protect": [{"unit": "db", "memory": "1GiB"}]}, "named in full"),
    ],
)
def test_a_guard_that_cannot_be_is_refused_where_it_stands(guard: dict[str, Any], words: str) -> None:
    with pytest.raises(FleetError) as caught:
        parse_fleet(yaml.safe_dump({**OFFICE, "guard": guard}), "fleet.yaml")
    assert words in str(caught.value), caught.value


def test_the_port_of_the_guard_is_its_own() -> None:
    with pytest.raises(SpecError, match=r"port 8000 on . is wanted by the guard and by model qwen"):
        layout("replicas", guard={"port": 8000})


STATUS = {
    "since": 1.0,
    "act": "restart",
    "total": 128 * GIB,
    "available": 20 * GIB,
    "lowest": 18 * GIB,
    "pressure": 0.0,
    "marks": [4 * GIB, 8 * GIB],
    "asked": 3,
}
RUNS = {"load": "loaded", "active": "active", "enabled": "enabled", "restarts": 0}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"unit": RUNS, "status": STATUS}, None),
        ({"unit": {**RUNS, "load": "not-found", "active": "inactive"}}, "there is no guard"),
        ({"unit": {**RUNS, "load": "not-found", "active": "inactive"}, "engine": False}, None),
        ({"unit": {**RUNS, "active": "failed"}}, "does not run"),
        ({"unit": RUNS}, "does not run"),
        ({"unit": RUNS, "status": {**STATUS, "listening": False}}, "its port is taken"),
        ({"unit": RUNS, "status": {**STATUS, "asked": 0, "refused": ["10.9.9.9"]}}, "10.9.9.9 asks the guard"),
        ({"unit": RUNS, "status": {**STATUS, "pool": {"memory": 2**33}}}, "the pool may take 8.0 GiB for now"),
        ({"unit": RUNS, "status": {**STATUS, "pool": {"out": {"u": "it hung"}}}}, "u stays out of the pool: it hung"),
        ({"unit": RUNS, "status": {**STATUS, "pool": {"worker": False}}}, "worker of the pool does not answer"),
        ({"unit": RUNS, "status": {**STATUS, "pressure": None}}, "psi=1"),
        ({"unit": RUNS, "status": {**STATUS, "short": "1 GiB available"}}, "memory is short: 1 GiB available"),
        ({"unit": RUNS, "status": STATUS, "others": ["earlyoom.service"]}, "earlyoom.service acts on short memory too"),
        (
            {"unit": RUNS, "status": {**STATUS, "engines": [{"unit": "u.service", "phase": "stopped", "out": "why"}]}},
            "u.service is stopped: why",
        ),
    ],
)
def test_what_is_wrong_with_a_guard_is_said(facts: dict[str, Any], words: str | None) -> None:
    seen = GuardFacts.model_validate(facts)
    problems = guard_problems("a", seen, wanted=True)
    assert (problems == []) if words is None else words in problems[0]
    assert told(seen)
