"""The steps of a plan and their order: what waits for what, and what does not."""

from __future__ import annotations

import pytest
from planned import BEFORE, COPY, GIB, SPLIT, boxes_in, layout, plan, unit

from fleetctl.plan.types import Plan


def before(made: Plan, name: str) -> set[str]:
    """Every step that is done before this one."""
    after = {step.id: step.after for step in made.steps}
    found: set[str] = set()
    todo = [name]
    while todo:
        for earlier in after[todo.pop()]:
            if earlier not in found:
                found.add(earlier)
                todo.append(earlier)
    return found


SPLIT_LAYOUT, REPLICAS = layout("split"), layout("replicas")
THERE = plan(SPLIT_LAYOUT, REPLICAS, boxes_in(SPLIT_LAYOUT))
BACK = plan(REPLICAS, SPLIT_LAYOUT, boxes_in(REPLICAS), book="rollback")


def test_a_plan_names_every_step_once_and_waits_only_for_steps_it_has() -> None:
    for made in (THERE, BACK):
        names = [step.id for step in made.steps]
        assert len(set(names)) == len(names)
        for index, step in enumerate(made.steps):
            assert set(step.after) <= set(names[:index])


@pytest.mark.parametrize(
    ("step", "waits_for"),
    [
        ("hold.hold.proxy", ["prepare.preflight.a", "prepare.preflight.b", "prepare.verify_release.b"]),
        ("hold.drain.proxy", ["hold.hold.proxy"]),
        (f"switch.stop_engine.b/{SPLIT}", ["hold.drain.proxy"]),
        ("switch.await_free.b", [f"switch.stop_engine.b/{SPLIT}"]),
        (f"switch.start_engine.b/{COPY}", ["switch.await_free.b", "switch.install_files.b"]),
        ("prove.await_ready.replicas/qwen@b", [f"switch.start_engine.b/{COPY}"]),
        ("open.open.replicas/qwen@b", ["prove.gate.replicas/qwen@b"]),
        ("settle.enable_units.a", ["open.open.replicas/qwen@a", "open.open.replicas/qwen@b"]),
        ("settle.remove_files.b", ["settle.enable_units.b"]),
        ("settle.make_current.a", ["settle.settle_proxy.proxy@a", "settle.remove_files.a"]),
    ],
)
def test_a_step_waits_for_what_it_needs(step: str, waits_for: list[str]) -> None:
    assert set(waits_for) <= before(THERE, step)


@pytest.mark.parametrize(
    ("step", "free_of"),
    [
        ("open.open.replicas/qwen@b", "replicas/qwen@a"),
        ("open.open.replicas/qwen@a", "replicas/qwen@b"),
        (f"switch.start_engine.b/{COPY}", ".await_free.a"),
        (f"switch.stop_engine.a/{SPLIT}", f".stop_engine.b/{SPLIT}"),
    ],
)
def test_a_step_does_not_wait_for_the_other_box(step: str, free_of: str) -> None:
    assert not [name for name in before(THERE, step) if free_of in name]


def test_a_split_is_proved_once_both_ranks_were_started() -> None:
    waits = before(BACK, "prove.await_ready.split/qwen")
    assert {f"switch.start_engine.a/{SPLIT}", f"switch.start_engine.b/{SPLIT}"} <= waits
    ready = next(step for step in BACK.steps if step.kind == "await_ready")
    assert [(rank["box"], rank["unit"]) for rank in ready.params["ranks"]] == [("a", SPLIT), ("b", SPLIT)]
    assert ready.params["url"] == "http://10.0.0.1:8000/health"


def test_a_box_is_free_when_the_old_engine_is_gone_and_the_new_one_fits() -> None:
    free = {step.box: step.params for step in THERE.steps if step.kind == "await_free"}
    for box, share in (("a", 75), ("b", 87)):
        assert free[box]["need"] == share * 128 * GIB // 100
        assert free[box]["ports"] == [8000]
        assert [name.split("@")[0] for name in free[box]["engines"]] == ["split/qwen"]
        assert [name.split("@")[0] for name in free[box]["next"]] == ["replicas/qwen"]


def test_what_is_in_place_needs_no_step() -> None:
    assert plan(REPLICAS, REPLICAS, boxes_in(REPLICAS), generation=1).nothing_to_do()


def test_an_engine_that_was_broken_before_is_not_waited_for_when_the_move_is_undone() -> None:
    seen = boxes_in(SPLIT_LAYOUT)
    broken = {**seen["b"].units, SPLIT: unit("failed")}
    made = plan(SPLIT_LAYOUT, REPLICAS, boxes_in(SPLIT_LAYOUT, b={"units": broken}))
    assert {step.box: step.params["serves"] for step in made.steps if step.kind == "stop_engine"} == {
        "a": False,
        "b": False,
    }
    assert all(step.params["serves"] for step in THERE.steps if step.kind == "stop_engine")


def test_back_to_before_fleetctl_the_proxy_goes_last() -> None:
    made = plan(SPLIT_LAYOUT, BEFORE, boxes_in(SPLIT_LAYOUT), generation=None, book="rollback")
    kinds = [step.kind for step in made.steps if step.box == "a"]
    assert kinds == [
        "preflight",
        "hold",
        "drain",
        "stop_engine",
        "await_free",
        "enable_units",
        "remove_files",
        "settle_proxy",
        "make_current",
    ]
    assert not any(step.kind in ("start_engine", "open", "stage_release") for step in made.steps)


def test_keys_that_the_proxy_no_longer_asks_for_are_removed() -> None:
    with_keys = layout("split", proxy__api_keys={"desk": {"env": "DESK"}})
    made = plan(with_keys, SPLIT_LAYOUT, boxes_in(with_keys))
    settle = next(step for step in made.steps if step.kind == "settle_proxy")
    assert settle.params["remove"] == ["/etc/fleetctl/proxy/keys"]
    assert "/etc/fleetctl/proxy/keys" not in settle.params["install"]


def test_replaced_units_get_their_state_back_once_the_engine_is_gone() -> None:
    with_old = layout("replicas", superseded=["old.service"])
    seen = boxes_in(with_old, 1, b={"superseded": {"old.service": unit()}})
    made = plan(with_old, BEFORE, seen, generation=None, book="rollback")
    given = next(step for step in made.steps if step.kind == "restore_superseded")
    assert (given.box, given.params["units"]) == ("b", ["old.service"])
    assert "switch.await_free.b" in before(made, given.id)


@pytest.mark.parametrize(
    ("source", "observed", "expected", "why"),
    [
        (BEFORE, boxes_in(BEFORE, None), None, "no engine of the fleet is up before the move"),
        (SPLIT_LAYOUT, boxes_in(SPLIT_LAYOUT), None, "not measured here yet (limit 10 min)"),
        (
            SPLIT_LAYOUT,
            boxes_in(
                SPLIT_LAYOUT,
                a={
                    "moves": [
                        {
                            "move": f"m{number}",
                            "end": {"result": "done", "loads": loads, "stops": stops},
                            "operation": "cutover",
                            "from_layout": "split",
                            "to_layout": "replicas",
                            "who": "me",
                            "started": 0.0,
                        }
                        for number, (loads, stops) in enumerate(
                            [
                                ({"replicas/qwen@a": 90.0}, {f"b/{SPLIT}": 9.0, f"a/{COPY}": 40.0}),
                                ({"replicas/qwen@a": 70.0}, {f"a/{SPLIT}": 3.0, f"b/{SPLIT}": 2.0}),
                                ({}, {}),
                            ]
                        )
                    ]
                },
            ),
            74.0,  # and a second for what is between
            "the old engines stop first (3.0 s last time); loading took 70 s last time",
        ),
        (REPLICAS, boxes_in(REPLICAS), 0.0, "no engine stops"),
    ],
    ids=["nothing ran", "never measured", "measured", "nothing stops"],
)
def test_the_expected_gap_is_said_with_its_reason(source: object, observed: object, expected: float, why: str) -> None:
    made = plan(source, REPLICAS, observed, generation=1 if source is REPLICAS else 2)  # type: ignore[arg-type]
    assert made.gap.expected == expected
    assert why in made.gap.why


def test_a_plan_survives_being_saved() -> None:
    assert Plan.model_validate_json(THERE.model_dump_json()) == THERE


def test_an_engine_that_only_has_to_be_opened_is_looked_at_once_the_proxy_is_there() -> None:
    """With nothing to hold or to switch, what flows still waits for all that was prepared."""
    seen = boxes_in(REPLICAS)
    down = {"a": seen["a"].model_copy(update={"proxy": None}), "b": seen["b"]}
    made = plan(REPLICAS, REPLICAS, down)
    kinds = [step.kind for step in made.steps]
    assert "load_proxy" in kinds and "stop_engine" not in kinds
    for step in made.steps:
        if step.kind in ("await_ready", "gate", "open"):
            assert "prepare.load_proxy.proxy" in before(made, step.id), step.id


def test_a_proxy_that_changes_its_box_has_a_step_on_each() -> None:
    moved = layout("split", proxy__box="b")
    made = plan(SPLIT_LAYOUT, moved, boxes_in(SPLIT_LAYOUT))
    settled = [step.id for step in made.steps if step.kind == "settle_proxy"]
    assert sorted(settled) == ["settle.settle_proxy.proxy@a", "settle.settle_proxy.proxy@b"]
    assert len({step.id for step in made.steps}) == len(made.steps)
