"""One engine at a time: who can take turns, what belongs to whose turn, and that turns follow each other."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from planned import COPY, SPLIT, boxes_in, layout, office, playbook, unit

from fleetctl.facts.types import Observed
from fleetctl.plan.build import build_plan
from fleetctl.plan.difference import compare
from fleetctl.plan.turns import rest, turns, why_not_one_at_a_time
from fleetctl.plan.types import Plan
from fleetctl.render.layout import render_layout
from fleetctl.render.release import Release
from fleetctl.run.schedule import among, reversed_order

BEFORE, AFTER = layout("replicas"), layout("replicas", models__qwen__arguments=["--seed", "7"])
A, B = "replicas/qwen@a", "replicas/qwen@b"
SERVERS = {A: "qwen/replicas-a", B: "qwen/replicas-b"}


def rolled(source: Release, target: Release, observed: Observed, generation: int = 2, anew: Any = ()) -> Plan:
    return build_plan(
        source=source,
        target=target,
        observed=observed,
        questions={},
        playbook=playbook("rolling"),
        operation="apply",
        lead="a",
        move="m",
        generation=generation,
        previous=1,
        anew=anew,
    )


def earlier(order: Any, name: str) -> set[str]:
    found: set[str] = set()
    todo = [name]
    while todo:
        fresh = set(order[todo.pop()]) - found
        found |= fresh
        todo += fresh
    return found


def turn_of(plan: Plan, number: int | None) -> list[str]:
    return [step.kind for step in plan.steps if step.turn == number and step.stage == "roll"]


WHOLE_TURN = [
    "hold",
    "drain",
    "stop_engine",
    "await_free",
    "install_files",
    "start_engine",
    "await_ready",
    "gate",
    "open",
]


def test_each_copy_has_a_whole_turn_with_its_own_server_and_its_own_files() -> None:
    made = rolled(BEFORE, AFTER, boxes_in(BEFORE))
    assert turn_of(made, 1) == turn_of(made, 2) == WHOLE_TURN
    for step in (step for step in made.steps if step.turn is not None):
        engine = A if step.turn == 1 else B
        assert step.id == f"roll.{step.kind}.{engine}"
        if step.kind in ("hold", "drain"):
            assert step.params["servers"] == [SERVERS[engine]]
        if step.kind in ("stop_engine", "install_files", "start_engine", "await_free"):
            assert step.box == engine[-1]
        if step.kind == "install_files":
            assert step.params["install"] == [f"/etc/systemd/system/{COPY}"]
    assert (made.gap.expected, made.gap.why) == (0.0, "one copy at a time, while another serves")


def test_a_turn_begins_when_the_one_before_is_over_and_is_undone_before_it() -> None:
    made = rolled(BEFORE, AFTER, boxes_in(BEFORE))
    after = {step.id: step.after for step in made.steps}
    first = {step.id for step in made.steps if step.turn == 1}
    second = {step.id for step in made.steps if step.turn == 2}
    prepared = {step.id for step in made.steps if step.stage == "prepare"}
    for step in second:
        assert first | prepared <= earlier(after, step)
    for step in first:
        assert not second & earlier(after, step)
    # Failed in the middle of the second turn: all of it that was begun is undone before anything of the first.
    begun = first | prepared | {name for name in second if ".open." not in name and ".gate." not in name}
    back = reversed_order(among(after, begun))
    for step in first:
        assert (second & begun) <= earlier(back, step)


def test_within_a_turn_one_step_follows_the_other() -> None:
    made = rolled(BEFORE, AFTER, boxes_in(BEFORE))
    after = {step.id: step.after for step in made.steps}
    for number in (1, 2):
        steps = [step.id for step in made.steps if step.turn == number]
        for before, step in pairwise(steps):
            assert after[step] == (before,)


def test_settling_waits_for_the_last_turn() -> None:
    made = rolled(BEFORE, AFTER, boxes_in(BEFORE))
    after = {step.id: step.after for step in made.steps}
    for box in ("a", "b"):
        assert {f"roll.open.{A}", f"roll.open.{B}"} <= earlier(after, f"settle.make_current.{box}")


@pytest.mark.parametrize(
    ("server", "drained"),
    [
        # Requests that it took before may run on, and a check that passes would bring it back in mid-turn.
        ({"status": "DOWN", "admin": "ready"}, True),
        ({"status": "DOWN", "admin": "drain"}, False),
        ({"status": "DOWN", "admin": "maint"}, False),
        ({"status": "UP", "admin": "ready", "weight": 0}, True),
        ({"status": "MAINT", "admin": "maint"}, False),
    ],
)
def test_a_copy_that_is_not_in_rotation_has_its_turn_first(server: dict[str, object], drained: bool) -> None:
    seen = boxes_in(BEFORE)
    assert seen["a"].proxy is not None
    servers = {**seen["a"].proxy.servers, SERVERS[B]: server}
    seen = boxes_in(BEFORE, a={"proxy": {"description": seen["a"].proxy.description, "servers": servers}})
    made = rolled(BEFORE, AFTER, seen)
    assert [step.target for step in made.steps if step.kind == "open"] == [B, A]
    assert turn_of(made, 1) == (WHOLE_TURN if drained else WHOLE_TURN[2:])


def test_only_the_box_whose_files_changed_is_touched() -> None:
    target = layout("replicas", boxes__b__reserve="20GiB")
    made = rolled(BEFORE, target, boxes_in(BEFORE))
    assert {step.box for step in made.steps if step.kind in ("stop_engine", "install_files", "start_engine")} == {"b"}
    assert turn_of(made, 2) == []


def test_files_of_units_that_do_not_start_come_after_all_turns() -> None:
    target = layout(
        "replicas",
        layouts__replicas={"qwen": {"copies": {"a": {"arguments": ["--seed", "7"]}, "b": {}}}},
        layouts__pairs={"qwen": {"copies": ["b"]}},
    )
    made = rolled(BEFORE, target, boxes_in(BEFORE))
    installs = [step for step in made.steps if step.kind == "install_files"]
    assert [(step.turn, step.box, step.params["install"]) for step in installs] == [
        (1, "a", [f"/etc/systemd/system/{COPY}"]),
        (None, "b", [f"/etc/systemd/system/{COPY}"]),
    ]
    after = {step.id: step.after for step in made.steps}
    assert f"roll.open.{A}" in earlier(after, installs[1].id)


def test_turns_and_rest_together_are_the_whole_difference() -> None:
    seen = boxes_in(BEFORE, b={"drift": ("/etc/fleetctl/bin/ready.py",)})
    whole = compare(BEFORE, AFTER, seen, 2)
    shares = [share for _, share in turns(AFTER, seen, whole)]
    left = rest(AFTER, seen, whole)
    for name, box in whole.boxes.items():
        parts = [*(share.boxes[name] for share in shares if name in share.boxes), left.boxes[name]]
        assert sorted(path for part in parts for path in part.install) == sorted(box.install)
        assert sorted(unit for part in parts for unit in part.stop) == sorted(box.stop)
    assert sorted([name for share in shares for name in share.close] + left.close) == sorted(whole.close)


@pytest.mark.parametrize(
    ("source", "target", "why"),
    [
        (BEFORE, AFTER, None),
        (BEFORE, layout("replicas", boxes__b__reserve="20GiB"), None),
        (
            layout("split"),
            layout("split", models__qwen__arguments=["--seed", "7"]),
            "split/qwen is a split, which changes as a whole",
        ),
        (
            layout("solo", layouts__solo={"qwen": {"copies": ["b"]}}),
            layout("solo", layouts__solo={"qwen": {"copies": ["b"]}}, models__qwen__arguments=["--seed", "7"]),
            "no other copy of qwen is in rotation while solo/qwen@b changes",
        ),
        (layout("split"), BEFORE, "split and replicas are different layouts"),
        (BEFORE, layout("replicas", proxy={"box": "b"}), "the proxy is not on the same box before and after"),
    ],
)
def test_engines_change_one_at_a_time_where_another_copy_serves(
    source: Release, target: Release, why: str | None
) -> None:
    seen = boxes_in(source)
    assert why_not_one_at_a_time(source, target, seen, compare(source, target, seen, 2)) == why


def test_the_last_copy_in_rotation_does_not_leave_for_one_that_is_not() -> None:
    seen = boxes_in(BEFORE)
    assert seen["a"].proxy is not None
    target = layout("replicas", layouts__replicas={"qwen": {"copies": {"a": {"arguments": ["--seed", "7"]}, "b": {}}}})
    assert why_not_one_at_a_time(BEFORE, target, seen, compare(BEFORE, target, seen, 2)) is None
    # The other copy is broken: it is started first, and then there is one that serves meanwhile.
    broken = boxes_in(
        BEFORE,
        a={
            "proxy": {
                "description": seen["a"].proxy.description,
                "servers": {**seen["a"].proxy.servers, SERVERS[B]: {"status": "DOWN"}},
            }
        },
        b={"units": {COPY: unit("failed")}},
    )
    made = rolled(BEFORE, target, broken)
    assert [step.target for step in made.steps if step.kind == "start_engine"] == [B, A]


# Restarts and secrets


def test_a_restart_stops_and_starts_engines_that_run_as_they_should() -> None:
    made = rolled(BEFORE, BEFORE, boxes_in(BEFORE), generation=1, anew={B})
    assert turn_of(made, 1) == [kind for kind in WHOLE_TURN if kind != "install_files"]
    assert {step.target for step in made.steps if step.turn is not None} == {B}
    stopped = next(step for step in made.steps if step.kind == "stop_engine")
    free = next(step for step in made.steps if step.kind == "await_free")
    # The name of the old engine is that of the new one: to see it running is no sign that the wait is over.
    assert free.params["engines"] == [stopped.params["engine"]] and free.params["next"] == []


def test_no_rank_of_a_restarted_split_starts_before_all_have_stopped() -> None:
    release = layout("split")
    made = build_plan(
        source=release,
        target=release,
        observed=boxes_in(release),
        questions={},
        playbook=playbook("cutover"),
        operation="restart",
        lead="a",
        move="m",
        generation=1,
        previous=None,
        anew={"split/qwen"},
    )
    after = {step.id: step.after for step in made.steps}
    for box in ("a", "b"):
        assert {f"switch.stop_engine.{other}/{SPLIT}" for other in ("a", "b")} <= earlier(
            after, f"switch.start_engine.{box}/{SPLIT}"
        )


SECRET = {"HF_TOKEN": {"env": "TOKEN"}}


def with_secrets() -> Release:
    fleet = office(models__qwen__environment=SECRET, proxy={"box": "a", "api_keys": {"me": {"env": "KEY"}}})
    return render_layout(fleet, "replicas")


def test_an_engine_with_a_secret_of_before_is_restarted_with_its_new_file() -> None:
    release = with_secrets()
    path = "/etc/fleetctl/secrets/replicas-qwen.env"
    seen = boxes_in(release, b={"stale": (path,)})
    made = rolled(release, release, seen)
    assert {step.target for step in made.steps if step.turn is not None} == {B}
    assert next(step.params["install"] for step in made.steps if step.kind == "install_files") == [path]
    assert [(diff.box, diff.path, diff.change) for diff in made.diffs] == [("b", path, "changed")]


def test_new_keys_of_the_proxy_need_a_reload_and_no_restart() -> None:
    release = with_secrets()
    seen = boxes_in(release, a={"stale": ("/etc/fleetctl/proxy/keys",)})
    found = compare(release, release, seen, 2)
    assert found.start == [] and found.settle_proxy and found.close == []


def test_a_move_says_that_a_box_is_drained_and_forgets_it() -> None:
    seen = boxes_in(BEFORE, b={"drained": {"since": 0.0, "by": "ann@desk"}})
    made = rolled(BEFORE, AFTER, seen)
    assert [step.box for step in made.steps if step.kind == "forget_drained"] == ["b"]
    assert any("b is drained (since" in warning and "by ann@desk" in warning for warning in made.warnings)
