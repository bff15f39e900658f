"""Boxes of a pool drained and put back, and its engines started anew, as plans; and what status says meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from planned import boxes_in, office, playbook
from pooled import MINILM, PASSWORDS, SMALL, all_in_pool, pooled

from fleetctl.errors import RefusedError
from fleetctl.facts.assess import assess
from fleetctl.facts.types import Drained, ServerFacts
from fleetctl.plan.types import Plan
from fleetctl.remote.boxes import Boxes
from fleetctl.render.release import Release
from fleetctl.run.planning import Look, Subject, plan_cutover
from fleetctl.run.rolling import plan_drain, plan_restart, plan_undrain
from fleetctl.watch.logs.names import chosen, sources_of

POOL: dict[str, Any] = {"nats": {"boxes": ["a"], "passwords": PASSWORDS}}
BOTH = {**POOL, "gateways": ["a", "b"]}
SUBJECT = Subject(office(models__minilm=MINILM, models__small=SMALL), "", Boxes({}))


def seen(release: Release, *drained: str) -> Look:
    """Both boxes at work, some of them drained: their gateways then get no requests."""
    observed = all_in_pool(boxes_in(release), release)
    for box in drained:
        observed[box] = observed[box].model_copy(update={"drained": Drained(since=0.0, by="ann@desk")})
    facts = observed["a"]
    assert facts.proxy is not None
    servers = {
        name: ServerFacts(status="DRAIN", weight=1) if any(name.endswith(f"-{box}") for box in drained) else server
        for name, server in facts.proxy.servers.items()
    }
    observed["a"] = facts.model_copy(update={"proxy": facts.proxy.model_copy(update={"servers": servers})})
    return Look({}, observed)


def steps(made: Plan) -> list[str]:
    return [step.id for step in made.steps if step.kind != "preflight"]


def drain(release: Release, box: str, *drained: str, hold: bool = False) -> Plan:
    return plan_drain(SUBJECT, seen(release, *drained), playbook("drain"), box, limit=7.0, hold=hold)


def test_a_box_of_a_pool_is_drained_by_its_worker_and_its_gateway_leaves_the_proxy() -> None:
    made = drain(pooled(pool=BOTH), "b")
    assert steps(made) == ["prepare.mark_drained.b", "drain.hold.proxy", "drain.drain.proxy", "drain.drain_worker.b"]
    servers = next(step for step in made.steps if step.kind == "hold").params["servers"]
    assert servers == ["minilm/pool-b", "small/pool-b"]
    assert next(step for step in made.steps if step.kind == "drain_worker").params == {"limit": 7.0}
    assert not [one for one in made.warnings if "queue" in one]
    queue = drain(pooled(pool=BOTH), "a")
    assert "the queue of the pool is on a alone" in " ".join(queue.warnings)


def test_a_box_without_a_gateway_is_drained_by_its_worker_alone() -> None:
    assert steps(drain(pooled(), "b")) == ["prepare.mark_drained.b", "drain.drain_worker.b"]


def test_the_only_gateway_and_the_last_box_of_a_model_are_not_taken_without_a_word() -> None:
    with pytest.raises(RefusedError, match="without a no engine serves minilm, small"):
        drain(pooled(), "a")
    assert "drain.drain_worker.a" in steps(drain(pooled(), "a", hold=True))
    with pytest.raises(RefusedError, match="without a no engine serves"):
        drain(pooled(pool=BOTH), "a", "b")


def test_a_box_comes_back_with_its_worker_seen_at_work_before_its_gateway_is_asked() -> None:
    made = plan_undrain(SUBJECT, seen(pooled(pool=BOTH), "b"), playbook("undrain"), "b")
    assert steps(made) == [
        "settle.forget_drained.b",
        "pool.await_pool.b/fleetctl-worker.service",
        "pool.await_pool.b/fleetctl-gateway.service",
        "pool.open_gateway.minilm/pool-b",
        "pool.open_gateway.small/pool-b",
    ]
    assert made.gap.expected == 0.0


@pytest.mark.parametrize("name", [None, "b", "minilm"])
def test_engines_that_are_loaded_start_anew_one_after_the_other(name: str | None) -> None:
    made = plan_restart(SUBJECT, seen(pooled()), playbook, name)
    step = next(step for step in made.steps if step.kind == "restart_pooled")
    boxes = ["b"] if name == "b" else ["a", "b"]
    assert [(one["box"], one["model"]) for one in step.params["engines"]] == [(box, "minilm") for box in boxes]
    assert [one.split(".")[1] for one in steps(made)] == ["restart_pooled", *["gate_pool"] * len(boxes)]
    assert made.gap.expected == 0.0


def test_what_is_not_loaded_and_what_is_on_a_drained_box_does_not_start_anew() -> None:
    with pytest.raises(RefusedError, match="nothing of small is loaded"):
        plan_restart(SUBJECT, seen(pooled()), playbook, "small")
    with pytest.raises(RefusedError, match=r"b is .*drained"):
        plan_restart(SUBJECT, seen(pooled(), "b"), playbook, "minilm")


def test_status_says_drained_and_finds_nothing_wrong_with_it() -> None:
    release = pooled(pool=BOTH)
    told = assess(seen(release, "b").observed, "a", "office")
    assert {one.id: one.server for one in told.engines if one.boxes == ("b",)} == {
        "pool/minilm@b": "drained",
        "pool/small@b": "drained",
    }
    assert told.problems == []


def test_a_change_of_the_pool_waits_for_a_box_that_is_drained() -> None:
    release, changed = pooled(pool=BOTH), pooled(pool={**BOTH, "limit": 7})
    with pytest.raises(RefusedError, match="b is drained, and its worker takes nothing until `fleetctl undrain b`"):
        plan_cutover(SUBJECT, changed, seen(release, "b"), playbook, "apply")


def test_logs_of_a_pool_are_found_by_its_engines_models_and_programs() -> None:
    release = pooled()
    sources = sources_of(SUBJECT.fleet, release)

    def units(*names: str, everything: bool = False) -> set[tuple[str, str]]:
        return {(one.box, one.unit) for one in chosen(sources, names, release, ("a", "b"), everything=everything)}

    minilm = "fleetctl-pool-minilm.service"
    assert units("pool/minilm@a") == {("a", minilm)} and units("minilm") == {("a", minilm), ("b", minilm)}
    assert units("worker") == {("a", "fleetctl-worker.service"), ("b", "fleetctl-worker.service")}
    assert ("a", "fleetctl-nats.service") in units("a", everything=True) - units("a")
