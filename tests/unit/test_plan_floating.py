"""The proxy on two boxes: every step on it is done on both, the address comes last and goes first."""

from __future__ import annotations

from typing import Any

import pytest
from planned import BEFORE, PROXY, TWO_PROXIES, VRRP, boxes_in, layout, office, plan, playbook, process, unit

from fleetctl.errors import RefusedError
from fleetctl.facts.assess import assess
from fleetctl.plan.types import Plan
from fleetctl.remote.boxes import Boxes
from fleetctl.render.release import ProxyConfig, Release
from fleetctl.run.planning import Look, Subject
from fleetctl.run.rolling import plan_drain, plan_restart, plan_undrain
from fleetctl.spec.fleet import Fleet

ONE, TWO = layout("replicas"), layout("replicas", proxy=TWO_PROXIES)
SPLIT_TWO = layout("split", proxy=TWO_PROXIES)
FLEET: Fleet = office(proxy=TWO_PROXIES)
SUBJECT = Subject(FLEET, "", Boxes({}))


def ids(made: Plan, kind: str) -> list[str]:
    return [step.id for step in made.steps if step.kind == kind]


def look(release: Release = TWO, **more: Any) -> Look:
    return Look({}, boxes_in(release, 1, **more))


def proxy_with(release: Release, server: str, status: str, box: str = "b") -> dict[str, Any]:
    """Facts of a box whose proxy has another status for a server."""
    proxy = boxes_in(release)[box].proxy
    assert proxy is not None
    return {"proxy": {"description": proxy.description, "servers": {**proxy.servers, server: {"status": status}}}}


def test_two_proxies_that_are_in_place_need_nothing() -> None:
    assert plan(TWO, TWO, boxes_in(TWO), generation=1).nothing_to_do()


def test_a_cutover_acts_on_both_proxies_before_any_engine_stops() -> None:
    made = plan(SPLIT_TWO, TWO, boxes_in(SPLIT_TWO))
    assert len({step.id for step in made.steps}) == len(made.steps)
    assert ids(made, "hold") == ["hold.hold.proxy@a", "hold.hold.proxy@b"]
    drains = [step for step in made.steps if step.kind == "drain"]
    assert [set(step.after) >= set(ids(made, "hold")) for step in drains] == [True, True]
    for step in (step for step in made.steps if step.kind == "stop_engine"):
        assert set(ids(made, "drain")) <= set(step.after)
    assert sorted(ids(made, "open")) == [
        f"open.open.replicas/qwen@{engine}/proxy@{box}" for engine in ("a", "b") for box in ("a", "b")
    ]
    assert ids(made, "settle_proxy") == ["settle.settle_proxy.proxy@a", "settle.settle_proxy.proxy@b"]
    assert ids(made, "settle_address") == []


def test_an_engine_has_its_turn_on_both_proxies_before_the_next_one() -> None:
    made = plan_restart(SUBJECT, look(), playbook, None)
    assert made.playbook == "rolling"
    assert len({step.id for step in made.steps}) == len(made.steps)
    order = [step.id for step in made.steps]
    last_open = max(order.index(name) for name in ids(made, "open") if "qwen@a/" in name)
    first_hold = min(order.index(name) for name in ids(made, "hold") if "qwen@b/" in name)
    assert last_open < first_hold


def test_a_second_proxy_is_there_before_the_address_is() -> None:
    made = plan(ONE, TWO, boxes_in(ONE), book="rolling")
    assert ids(made, "load_proxy") == ["prepare.load_proxy.proxy@a", "prepare.load_proxy.proxy@b"]
    assert ids(made, "settle_address") == ["settle.settle_address.address@a", "settle.settle_address.address@b"]
    assert ids(made, "stop_engine") == ids(made, "hold") == []
    loaded = [step for step in made.steps if step.kind == "load_proxy"]
    assert [ProxyConfig.model_validate(step.params["config"]).layout for step in loaded] == ["replicas", "replicas"]
    installed = [path for step in made.steps if step.kind == "install_files" for path in step.params["install"]]
    assert not [path for path in installed if "vrrp" in path]
    verified = {step.box: step.params.get("vrrp") for step in made.steps if step.kind == "verify_release"}
    assert verified == dict.fromkeys("ab", "/etc/fleetctl/vrrp/keepalived.conf")


def test_a_copy_that_comes_with_the_second_proxy_is_opened_on_both_in_its_turn() -> None:
    one = layout("replicas", layouts={"replicas": {"qwen": {"copies": ["a"]}}})
    made = plan(one, TWO, boxes_in(one), book="rolling")
    assert ids(made, "open") == [
        f"roll.open.replicas/qwen@{engine}/proxy@{box}" for engine in ("b", "a") for box in ("a", "b")
    ]


def test_back_to_one_the_address_goes_before_the_proxy_and_is_served_until_then() -> None:
    made = plan(TWO, ONE, boxes_in(TWO), book="rolling")
    order = [step.id for step in made.steps if step.box == "b"]
    assert order.index("settle.settle_address.address@b") < order.index("settle.settle_proxy.proxy@b")
    (loaded,) = (step for step in made.steps if step.kind == "load_proxy")
    assert "10.0.0.50:8080" in loaded.params["config"]["former"]
    assert any("10.0.0.50:8080 is not answered any more" in told for told in made.warnings)


def test_from_before_fleetctl_and_back_both_proxies_come_and_go() -> None:
    there = plan(BEFORE, TWO, boxes_in(BEFORE, None), generation=1)
    assert ids(there, "settle_address") == ["settle.settle_address.address@a", "settle.settle_address.address@b"]
    back = plan(TWO, BEFORE, boxes_in(TWO), generation=None, book="rollback")
    assert [step.params["leave"] != [] for step in back.steps if step.kind == "settle_address"] == [True, True]
    assert ids(back, "hold") == ["hold.hold.proxy@a", "hold.hold.proxy@b"]


def test_a_unit_of_the_address_that_is_down_or_not_enabled_is_brought_back() -> None:
    for state in (unit("failed"), unit("active", "disabled")):
        units = {**boxes_in(TWO)["b"].units, VRRP: state}
        made = plan(TWO, TWO, boxes_in(TWO, b={"units": units}), generation=1)
        assert "settle.settle_address.address@b" in ids(made, "settle_address")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"keepalived": None}, "b: keepalived is not installed: fleetctl setup b --only packages"),
        ({"haproxy": None}, "b: HAProxy is not installed: fleetctl setup b --only packages"),
        ({"addresses": ["192.0.2.1"]}, "b: it does not have the address 10.0.0.2 that fleet.yaml says"),
        ({"vrrp": {"router_ids": [7, 51]}}, "b: its own keepalived.service has virtual_router_id 51 too"),
        ({"vrrp": {"addresses": ["10.0.0.50"]}}, "b: its own keepalived.service has 10.0.0.50 in its configuration"),
        (
            {"answering": {"10.0.0.50": "02:00:00:00:00:01"}},
            "a machine that is not of this fleet has the floating address",
        ),
        ({"ports": {8080: process(unit_name="nginx.service")}}, "b: port 8080 for the proxy is taken by"),
        ({"units": {PROXY: unit(fragment=f"/etc/systemd/system/{PROXY}")}}, f"b: there is a unit {PROXY}"),
        ({"units": {VRRP: unit(fragment=f"/etc/systemd/system/{VRRP}")}}, f"b: there is a unit {VRRP}"),
    ],
)
def test_what_stands_in_the_way_of_a_second_proxy_is_said(more: dict[str, Any], says: str) -> None:
    seen = boxes_in(BEFORE, None, b=more)
    with pytest.raises(RefusedError) as caught:
        plan(BEFORE, TWO, seen, generation=1)
    assert says in caught.value.message


def test_a_keepalived_of_the_box_for_something_else_is_in_nobodys_way() -> None:
    other = {"vrrp": {"router_ids": [7], "addresses": ["10.0.0.60"]}}
    assert plan(BEFORE, TWO, boxes_in(BEFORE, None, b=other), generation=1).steps


def test_the_box_that_has_the_address_may_say_so() -> None:
    seen = boxes_in(TWO, 1, b={"answering": {"10.0.0.50": "02:00:00:00:00:01"}})
    assert plan(TWO, SPLIT_TWO, seen).steps


def problems(**more: Any) -> list[str]:
    return assess(boxes_in(TWO, 1, **more), "a", "office").problems


def test_status_says_where_the_address_is() -> None:
    found = assess(boxes_in(TWO), "a", "office")
    assert (found.address, found.address_on, found.problems) == ("10.0.0.50", ["a"], [])
    assert [engine.server for engine in found.engines] == ["up", "up"]


def test_status_says_what_is_wrong_with_the_address_and_with_each_proxy() -> None:
    facts = boxes_in(TWO)
    a, b = (list(facts[box].addresses) for box in "ab")
    assert problems(a={"addresses": a[:1]}) == ["no box has the address 10.0.0.50: clients reach nothing there"]
    (both,) = problems(b={"addresses": [*b, "10.0.0.50"]})
    assert both.startswith("a, b have the address 10.0.0.50 at the same time")
    down = problems(b={"units": {**facts["b"].units, VRRP: unit("failed")}})
    assert f"b: {VRRP} does not run: 10.0.0.50 would not come to this box" in down
    assert "b: the proxy (fleetctl-proxy.service) does not run" in problems(b={"proxy": None})
    told = problems(b=proxy_with(TWO, "qwen/replicas-a", "MAINT"))
    assert told == ["replicas/qwen@a runs, but the proxy on b sends it no requests"]
    engines = assess(boxes_in(TWO, 1, b=proxy_with(TWO, "qwen/replicas-a", "MAINT")), "a", "office").engines
    assert [engine.server for engine in engines] == ["up on a, MAINT on b", "up"]


def test_status_goes_on_without_a_box_of_the_proxy() -> None:
    found = assess({"b": boxes_in(TWO)["b"]}, "a", "office", {"a": RefusedError("no route")})
    assert not [told for told in found.problems if "address" in told]
    assert [engine.server for engine in found.engines] == ["up", "up"]


def test_a_copy_counts_as_serving_only_where_every_proxy_sends_it_requests() -> None:
    half = look(b=proxy_with(TWO, "qwen/replicas-a", "MAINT"))
    with pytest.raises(RefusedError, match="without b no engine serves qwen"):
        plan_drain(SUBJECT, half, playbook("drain"), "b", limit=None, hold=False)
    made = plan_undrain(SUBJECT, half, playbook("undrain"), "a")
    assert ids(made, "open") == [f"open.open.replicas/qwen@a/proxy@{box}" for box in "ab"]


def test_a_box_is_not_drained_while_a_proxy_does_not_run() -> None:
    with pytest.raises(RefusedError, match=r"b: the proxy \(fleetctl-proxy\.service\) does not run"):
        plan_drain(SUBJECT, look(b={"proxy": None}), playbook("drain"), "a", limit=None, hold=False)


def test_a_release_that_an_earlier_version_kept_has_one_box() -> None:
    assert ONE.proxy is not None
    kept = ONE.proxy.model_dump(mode="json", exclude={"boxes", "own", "floating", "vrrp_unit", "former"})
    assert ProxyConfig.model_validate({**kept, "box": "a"}) == ONE.proxy


def test_both_proxies_carry_the_same_name_for_their_configuration() -> None:
    told = {
        line.strip()
        for files in TWO.files.values()
        for file in files
        if file.path.endswith("/haproxy.cfg")
        for line in file.content.splitlines()
        if "description" in line
    }
    assert len(told) == 1
