"""Make before break: two layouts that fit the boxes together, moved between without a gap."""

from __future__ import annotations

import json
from typing import Any

from moving import BOXES, COPY, Moving

SMALL = "fleetctl-small-standin.service"


def two_that_fit(document: dict[str, Any], share: float = 0.3) -> None:
    """`replicas` and `small`: a copy on each box, each with its share of the memory."""
    for name in ("replicas", "small"):
        document["layouts"][name] = {
            "standin": {"copies": {box: {"gpu_memory_utilization": share} for box in BOXES}, "concurrency": 12}
        }


def end_of(ran: Any) -> dict[str, Any]:
    return next(e for e in ran.events if e["type"] == "move" and e["state"] == "done")


def test_engines_that_fit_together_are_exchanged_without_a_gap_there_and_back(moving: Moving) -> None:
    text = moving.changed(two_that_fit)
    moving.cutover("replicas", text=text)
    assert SMALL not in moving.sh("box2", f"systemctl show -P Conflicts {COPY}")
    old = {box: moving.pid(box, COPY) for box in BOXES}
    with moving.steady_traffic(clients=4) as traffic:
        there = moving.cutover("small", text=text)
    assert traffic.failed == []
    assert there.plan["gap"]["expected"] == 0, there.plan["gap"]
    assert end_of(there)["gap"] == 0
    order = there.steps()
    first_stop = min(order.index(step) for step in order if ".stop_engine." in step)
    assert all(order.index(step) < first_stop for step in order if ".open." in step)
    for box in BOXES:
        assert old[box] != "0"
        assert moving.unit(box, SMALL) == ("active", "enabled")
        assert moving.our_units(box)[-1] == SMALL
        assert {name.split("@")[0] for name in moving.processes(box)} == {"FLEETCTL_ENGINE=small/standin"}
    assert moving.status(text)["exit"] == 0
    with moving.steady_traffic(clients=4) as traffic:
        ran = moving.run("rollback", "--yes", text=text)
    assert ran.rc == 0, ran
    assert (traffic.failed, end_of(ran)["gap"]) == ([], 0)
    assert moving.status(text)["layout"] == "replicas"


def test_a_new_engine_that_fails_its_gates_leaves_the_old_ones_as_they_were(moving: Moving) -> None:
    text = moving.changed(two_that_fit)
    moving.cutover("replicas", text=text)
    before, pids = moving.picture(), {box: moving.pid(box, COPY) for box in BOXES}
    broken = moving.changed(
        lambda d: (two_that_fit(d), d["layouts"]["small"]["standin"].update(environment={"STANDIN_ERROR_500": "1"}))
    )
    with moving.steady_traffic() as traffic:
        ran = moving.run("cutover", "--to", "small", "--yes", text=broken)
    assert ran.rc == 6, ran
    assert traffic.failed == []
    assert {box: moving.pid(box, COPY) for box in BOXES} == pids
    assert moving.same_as(before)


def test_the_plan_says_in_gib_why_there_is_a_gap(moving: Moving) -> None:
    text = moving.changed(lambda d: two_that_fit(d, share=0.5))
    moving.cutover("replicas", text=text)
    plan = moving.run("plan", "--to", "small", text=text).plan
    assert plan["playbook"] == "cutover"
    told = "the old and the new engine do not fit box1 together: 2.0 GiB + 2.0 GiB = 4.0 GiB, 3.0 GiB are for engines"
    assert f"{told}: 1.0 GiB missing" in plan["gap"]["why"], json.dumps(plan["gap"])
