"""Moves into a pool, within it and out of it, as plans."""

from __future__ import annotations

from itertools import pairwise

import pytest
from planned import BEFORE, boxes_in, layout, plan, unit
from pooled import BATCH, GATEWAY, NATS, WORKER, all_in_pool, pooled, server

from fleetctl.errors import BoxError, RefusedError
from fleetctl.facts.assess import assess
from fleetctl.facts.gather import question
from fleetctl.plan.difference import compare
from fleetctl.plan.types import Plan


def ids(made: Plan, *stages: str) -> list[str]:
    """Steps of some stages, in their order."""
    return [step.id for step in made.steps if step.stage in stages]


def before(made: Plan, one: str, other: str) -> bool:
    """A step waits for another, directly or by way of others."""
    steps = {step.id: step for step in made.steps}
    waiting, seen = [one], set()
    while waiting:
        for name in steps[waiting.pop()].after:
            if name not in seen:
                seen.add(name)
                waiting.append(name)
    return other in seen


def test_a_move_into_a_pool_brings_programs_starts_proves_and_only_then_opens() -> None:
    source, target = pooled("replicas"), pooled()
    made = plan(source, target, boxes_in(source))
    assert [s for s in ids(made, "prepare") if "ship_programs" in s] == [
        "prepare.ship_programs.a",
        "prepare.ship_programs.b",
    ]
    switch = [s.removeprefix("switch.") for s in ids(made, "switch")]
    assert [s for s in switch if "engine" in s] == [
        "stop_engine.a/fleetctl-replicas-qwen.service",
        "stop_engine.b/fleetctl-replicas-qwen.service",
    ]
    assert [s for s in switch if s.startswith("start_")] == [
        f"start_nats.a/{NATS}",
        f"start_worker.a/{WORKER}",
        f"start_worker.b/{WORKER}",
        f"start_gateway.a/{GATEWAY}",
    ]
    assert [s for s in ids(made, "prove") if "gate_pool" in s] == [
        "prove.gate_pool.pool/minilm@a",
        "prove.gate_pool.pool/minilm@b",
    ]
    opened = ids(made, "open")
    assert opened == ["open.open_gateway.minilm/pool-a", "open.open_gateway.small/pool-a"]
    for proof in ids(made, "prove"):
        assert before(made, opened[0], proof), proof
    enabled = {step.box: step.params["enable"] for step in made.steps if step.kind == "enable_units"}
    assert enabled == {"a": [GATEWAY, NATS, WORKER], "b": [WORKER]}


def test_the_way_out_stops_gateway_worker_engines_and_queue_in_this_order() -> None:
    source, target = pooled(), layout("replicas")
    seen = all_in_pool(boxes_in(source), source, loaded=("minilm", "small"))
    made = plan(source, target, seen, book="rollback")
    order = [f"switch.stop_gateway.a/{GATEWAY}", f"switch.stop_worker.a/{WORKER}"]
    order += ["switch.stop_engine.a/fleetctl-pool-minilm.service", f"switch.stop_nats.a/{NATS}"]
    for first, then in pairwise(order):
        assert before(made, then, first), (first, then)
    # The queue waits for the workers of every box, which still have answers for it.
    assert before(made, order[3], f"switch.stop_worker.b/{WORKER}")
    assert before(made, "switch.start_engine.a/fleetctl-replicas-qwen.service", order[3])
    worker = next(step for step in made.steps if step.id == order[1])
    assert sorted(worker.params["engines"]) == ["fleetctl-pool-minilm.service", "fleetctl-pool-small.service"]


def test_the_queue_stays_where_the_file_has_one_and_batch_jobs_go_to_the_models_behind_the_proxy() -> None:
    source, target = pooled(), pooled("replicas")
    made = plan(source, target, all_in_pool(boxes_in(source), source), book="rollback")
    assert [step.target for step in made.steps if step.kind == "stop_nats"] == []
    assert [step.target for step in made.steps if step.kind.startswith("start_") and "engine" not in step.kind] == [
        f"a/{BATCH}"
    ]
    there = all_in_pool(boxes_in(target), target)
    assert compare(target, target, there, 1).nothing()
    assert [unit for unit in there["a"].units if unit in (BATCH, NATS, WORKER, GATEWAY)] == [NATS, BATCH]


def test_in_a_pool_nothing_is_to_be_done_whichever_engines_are_loaded() -> None:
    release = pooled()
    for loaded in ((), ("minilm",), ("minilm", "small")):
        seen = all_in_pool(boxes_in(release), release, loaded)
        assert compare(release, release, seen, 1).nothing(), loaded
        digests = {box: facts.digest() for box, facts in seen.items()}
        assert digests == {box: facts.digest() for box, facts in all_in_pool(boxes_in(release), release).items()}


def test_a_model_more_restarts_its_workers_and_the_gateways_and_leaves_engines_loaded() -> None:
    source = pooled()
    more = {
        "minilm": {"pool": ["a", "b"], "pin": True, "concurrency": 8},
        "small": {"pool": ["a", "b"], "memory": "12GiB"},
        "qwen": {"pool": ["b"], "memory": "90GiB"},
    }
    target = pooled(layouts__pool=more)
    made = plan(source, target, all_in_pool(boxes_in(source), source))
    stopped = [step for step in made.steps if step.kind.startswith("stop_")]
    assert [step.target for step in stopped] == [f"a/{GATEWAY}", f"b/{WORKER}"], "a loads nothing new"
    assert all(step.params["engines"] == {} for step in stopped)
    assert made.gap.why == "as long as the pool starts and loads what is pinned"


def test_a_change_that_is_undone_leaves_engines_loaded_that_stay_as_they_are() -> None:
    source = pooled()
    more = {
        "minilm": {"pool": ["a", "b"], "pin": True, "concurrency": 8},
        "small": {"pool": ["a", "b"], "memory": "12GiB"},
        "qwen": {"pool": ["b"], "memory": "90GiB"},
    }
    made = plan(source, pooled(layouts__pool=more), all_in_pool(boxes_in(source), source))
    (started,) = [step for step in made.steps if step.kind == "start_worker"]
    loaded = {rank.unit for _, rank in source.lodgers_on("b")}
    assert started.params["engines"] and not loaded & set(started.params["engines"])


def test_another_build_of_a_loaded_engine_takes_its_worker_down_first() -> None:
    source = pooled()
    target = pooled(models__minilm__context=128)
    made = plan(source, target, all_in_pool(boxes_in(source), source))
    assert before(made, "switch.stop_engine.b/fleetctl-pool-minilm.service", f"switch.stop_worker.b/{WORKER}")
    assert "prove.gate_pool.pool/minilm@b" in ids(made, "prove")
    assert (made.gap.expected, made.gap.why) == (0.0, "requests wait in the queue of the pool meanwhile")


def test_a_program_that_died_is_told_and_started_again() -> None:
    release = pooled()
    seen = all_in_pool(boxes_in(release), release)
    units = {**seen["b"].units, WORKER: unit("failed", fragment=f"/etc/systemd/system/{WORKER}")}
    seen["b"] = seen["b"].model_copy(update={"units": units})
    assert f"b: {WORKER} does not run: fleetctl apply starts it" in assess(seen, "a", "office").problems
    made = plan(release, release, seen, 1)
    assert [step.target for step in made.steps if step.kind.startswith("start_")] == [f"b/{WORKER}"]


def test_a_pinned_engine_that_is_not_loaded_is_a_problem_and_another_is_none() -> None:
    release = pooled()
    seen = all_in_pool(boxes_in(release), release, loaded=())
    assert assess(seen, "a", "office").problems == [
        "pool/minilm@a is pinned and not loaded",
        "pool/minilm@b is pinned and not loaded",
    ]


def test_a_pinned_engine_that_loads_and_a_gateway_on_a_box_that_is_off_are_told_as_that() -> None:
    release = pooled(pool__gateways=["a", "b"])
    seen = all_in_pool(boxes_in(release), release)
    units = {**seen["a"].units, "fleetctl-pool-minilm.service": unit("activating")}
    proxy = seen["a"].proxy
    assert proxy is not None
    servers = {name: server("DOWN" if name.endswith("-b") else "UP") for name in proxy.servers}
    proxy = proxy.model_copy(update={"servers": servers})
    seen["a"] = seen["a"].model_copy(update={"units": units, "proxy": proxy})
    told = assess({"a": seen["a"]}, "a", "office", {"b": BoxError("b", "it is off")}).problems
    assert "pool/minilm@a is pinned and still loads" in told
    assert not [problem for problem in told if problem.startswith("b: its gateway runs")]


def test_the_first_layout_of_all_can_be_a_pool() -> None:
    target = pooled()
    made = plan(BEFORE, target, boxes_in(BEFORE, None))
    assert f"switch.start_nats.a/{NATS}" in ids(made, "switch")


def test_boxes_are_asked_for_what_the_pool_takes() -> None:
    asked = question((), "a", [pooled()])
    assert {8090, 8091, 4222} <= set(asked["ports"])
    assert {"/usr/sbin/nats-server", "/usr/bin/python3", "/models/minilm", "/opt/vllm/bin/vllm"} <= set(asked["paths"])
    assert {NATS, WORKER, GATEWAY, "fleetctl-pool-small.service"} <= set(asked["units"])


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"python": "3.10.12"}, "need Python 3.11, and its python3 is 3.10.12"),
        (
            {"paths": {"/usr/sbin/nats-server": {"kind": "missing"}}},
            "/usr/sbin/nats-server is not a program there: fleetctl setup a --only packages brings nats-server",
        ),
        ({"ports": {4222: {"pid": 7, "comm": "nats-server", "unit": "nats-server.service"}}}, "port 4222"),
    ],
)
def test_what_stands_in_the_way_of_a_pool_is_said_before_anything_is_touched(
    facts: dict[str, object], said: str
) -> None:
    source = pooled("replicas")
    with pytest.raises(RefusedError, match=said):
        plan(source, pooled(), boxes_in(source, a=facts))


def test_a_store_that_its_disk_has_no_room_for_is_told_where_nats_starts() -> None:
    source, target = pooled("replicas"), pooled()
    assert target.pool is not None
    for free, told in ((target.pool.store - 1, True), (target.pool.store, False)):
        made = plan(source, target, boxes_in(source, a={"free": {"/etc/fleetctl": free, "/var/lib/fleetctl": free}}))
        assert any(one.startswith("a: NATS may keep") for one in made.warnings) is told, made.warnings
    boxes = boxes_in(target, a={"free": {"/etc/fleetctl": 2**29, "/var/lib/fleetctl": 2**29}})
    made = plan(target, target, all_in_pool(boxes, target))
    assert not any("NATS may keep" in one for one in made.warnings)


def test_without_a_pool_no_step_is_about_one() -> None:
    source, target = layout("split"), layout("replicas")
    made = plan(source, target, boxes_in(source))
    assert not [
        step.id for step in made.steps if "pool" in step.kind or "programs" in step.kind or "gateway" in step.kind
    ]


def test_status_tells_which_engines_of_a_pool_are_loaded() -> None:
    release = pooled()
    seen = assess(all_in_pool(boxes_in(release), release), "a", "office")
    assert [(one.id, one.state, one.server) for one in seen.engines] == [
        ("pool/minilm@a", "active", "pool"),
        ("pool/minilm@b", "active", "pool"),
        ("pool/small@a", "not loaded", "pool"),
        ("pool/small@b", "not loaded", "pool"),
    ]
    assert seen.healthy()


def test_models_that_are_not_pinned_are_loaded_once_after_the_proxy_opened_where_gates_say_so() -> None:
    source = pooled("replicas")
    assert not [step for step in plan(source, pooled(), boxes_in(source)).steps if step.stage == "try"]
    target = pooled(gates={"unpinned": True})
    made = plan(source, target, boxes_in(source))
    tried = ids(made, "try")
    assert tried == ["try.gate_unpinned.pool/small@a", "try.gate_unpinned.pool/small@b"]
    opened = next(name for name in ids(made, "open") if "open_gateway" in name)
    assert all(before(made, name, opened) for name in tried)
    again = plan(target, target, all_in_pool(boxes_in(target), target))
    assert not ids(again, "try"), "those that stay as they are were tried before"
