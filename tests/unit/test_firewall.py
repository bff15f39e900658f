"""The firewall of the office: what is rendered, what a move does about it, and what status says of it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from planned import BEFORE, boxes_in, layout, office, plan, unit

from fleetctl.errors import RefusedError, SpecError
from fleetctl.facts.assess import assess
from fleetctl.facts.types import FirewallFacts, Observed
from fleetctl.onbox.firewall import refused, without_refused
from fleetctl.plan.types import Plan
from fleetctl.render.firewall import FIREWALL_PATHS, firewall_of, mark_of
from fleetctl.render.release import Release

UNIT = "fleetctl-firewall.service"
OPEN = layout("replicas")
WALLED = layout("replicas", firewall={})
ALLOWED = layout("replicas", firewall={"allow": ["192.0.2.10"]})
WALLED_SPLIT = layout("split", firewall={})


def table(release: Release, box: str) -> str:
    return next((file.content for file in release.files[box] if file.path == FIREWALL_PATHS[0]), "")


def elements(release: Release, box: str, name: str) -> list[str]:
    """Elements of a set in the table of a box; none where there is no such set."""
    found = re.search(rf"set {name} \{{.*?elements = \{{ (.*?) \}}", table(release, box), re.DOTALL)
    return found[1].split(", ") if found else []


def test_without_the_key_there_is_no_firewall() -> None:
    assert OPEN.firewall is None
    assert not [file.path for files in OPEN.files.values() for file in files if file.path in FIREWALL_PATHS]


def test_the_ports_of_every_layout_are_closed_so_that_a_move_does_not_change_the_table() -> None:
    layouts = {
        "split": {"qwen": {"split": ["a", "b"], "port": 9000, "master_port": 31000}},
        "replicas": {"qwen": {"copies": ["a", "b"]}},
        "solo": {"qwen": {"copies": ["b"], "port": 7000}},
    }
    releases = [layout(name, firewall={}, layouts=layouts) for name in layouts]
    assert elements(releases[0], "a", "engines") == ["8000", "9000"]
    assert elements(releases[0], "a", "ranks") == ["31000", "31001"]
    assert elements(releases[0], "b", "engines") == ["7000", "8000"]
    assert elements(releases[0], "b", "ranks") == [], "a follower listens for nobody"
    for box in ("a", "b"):
        assert len({table(release, box) for release in releases}) == 1


def test_the_fleet_reaches_all_ports_and_the_others_no_ranks() -> None:
    release = layout("split", firewall={"allow": ["10.9.0.0/24", "10.9.0.7", "fd00::/64", "192.0.2.1/32"]})
    assert elements(release, "a", "fleet_ip4") == ["10.0.0.1", "10.0.0.2", "10.1.0.1", "10.1.0.2"]
    assert elements(release, "a", "allow_ip4") == ["10.9.0.0/24", "192.0.2.1"]
    assert elements(release, "a", "allow_ip6") == ["fd00::/64"]
    for line in table(release, "a").splitlines():
        assert "saddr @allow" not in line or line.endswith("tcp dport @engines accept")


def test_a_box_with_an_ipv6_address_is_let_in_by_it() -> None:
    boxes = {**office().model_dump(mode="json")["boxes"]}
    boxes["b"] = {"address": "fd00:0::2", "memory": "128GiB", "reserve": "16GiB"}
    release = layout("split", firewall={}, boxes=boxes)
    assert elements(release, "a", "fleet_ip6") == ["fd00::2"]
    assert "ip6 saddr @fleet_ip6 accept" in table(release, "b")


def test_a_box_without_engines_has_no_firewall_and_a_name_is_no_address() -> None:
    assert "b" not in layout("solo", firewall={}, layouts={"solo": {"qwen": {"copies": ["a"]}}}).files
    with pytest.raises(SpecError, match=r"box b: the firewall needs an IP address, and b\.lan is a name"):
        firewall_of(office(firewall={}, boxes__b__address="b.lan"))


def test_the_mark_changes_with_the_table_and_only_then() -> None:
    marks = [mark_of(release.files["b"]) for release in (WALLED, layout("replicas", firewall={}), ALLOWED)]
    assert marks[0] == marks[1] != marks[2]
    assert mark_of(OPEN.files["b"]) is None


def walled(release: Release, **more: dict[str, Any]) -> Observed:
    """Both boxes in a release with a firewall, with its tables loaded; ``b={…}`` changes what is seen on one."""
    seen = boxes_in(release)
    found = {}
    for box, facts in seen.items():
        loaded = FirewallFacts(loaded=True, mark=mark_of(release.files[box]), intact=True)
        units = {**facts.units, UNIT: unit(fragment=FIREWALL_PATHS[1])}
        changes = {"firewall": loaded, "units": units, "ours": tuple(units), "nft": "/usr/sbin/nft"}
        found[box] = facts.model_copy(update={**changes, **more.get(box, {})})
    return found


def able(release: Release, **more: dict[str, Any]) -> Observed:
    """Both boxes in a release without a firewall, with nftables on them."""
    return boxes_in(release, **{box: {"nft": "/usr/sbin/nft", **more.get(box, {})} for box in ("a", "b")})


def steps(made: Plan) -> list[str]:
    return [step.id for step in made.steps if "firewall" in step.kind]


APPLIED = ["prepare.apply_firewall.a", "prepare.apply_firewall.b"]
REMOVED = ["settle.remove_firewall.a", "settle.remove_firewall.b"]


@pytest.mark.parametrize("book", ["cutover", "rolling", "rollback"])
@pytest.mark.parametrize(
    ("source", "target", "observed", "expected"),
    [
        (OPEN, WALLED, able(OPEN), APPLIED),
        (WALLED, ALLOWED, walled(WALLED), APPLIED),
        (WALLED, OPEN, walled(WALLED), REMOVED),
        (WALLED, BEFORE, walled(WALLED), REMOVED),
        (WALLED, WALLED_SPLIT, walled(WALLED), []),
    ],
    ids=["put there", "changed", "taken away", "before fleetctl", "another layout"],
)
def test_a_move_loads_it_first_and_takes_it_away_last(
    book: str, source: Release, target: Release, observed: Observed, expected: list[str]
) -> None:
    made = plan(source, target, observed, generation=None if target is BEFORE else 2, book=book)
    assert steps(made) == expected
    assert bool([told for told in made.warnings if "all others use the proxy" in told]) == (source is OPEN)
    for step in made.steps:
        others = [
            path for key in ("install", "remove") if "firewall" not in step.kind for path in step.params.get(key, ())
        ]
        assert not set(others) & set(FIREWALL_PATHS), step.id
        assert step.params.get("unit") != UNIT, "it is no engine"
    enabled = {step.box: step.params for step in made.steps if step.kind == "enable_units"}
    if expected:
        key = "enable" if source is OPEN else "disable" if expected is REMOVED else None
        assert key is None or all(UNIT in enabled[box][key] for box in ("a", "b"))


def test_it_is_proved_by_the_proxys_way_to_the_engines_before_and_after() -> None:
    split = layout("split", layouts__split={"qwen": {"split": ["b", "a"], "port": 9000}}, proxy={"box": "b"})
    target = layout("replicas", firewall={"allow": ["192.0.2.10"]})
    made = plan(split, target, able(split))
    given = {step.box: step.params for step in made.steps if step.kind == "apply_firewall"}
    assert given["b"]["engines"] == [["10.0.0.2", 8000], ["10.0.0.2", 9000]]
    assert given["a"]["engines"] == [["10.0.0.1", 8000]]
    for box in ("a", "b"):
        assert given[box]["callers"] == ["a", "b"]
        assert given[box]["allowed"] == ["10.0.0.1", "10.0.0.2", "10.1.0.1", "10.1.0.2", "192.0.2.10/32"]
        assert given[box]["limit"] == 30.0


RIGHT = walled(WALLED)["b"].firewall
assert RIGHT is not None
HARM: dict[str, tuple[dict[str, Any], str]] = {
    "flushed": ({"firewall": FirewallFacts(loaded=False)}, "the firewall is not loaded: engines answer everybody"),
    "not looked at": ({"firewall": None}, "the firewall is not loaded"),
    "edited": (
        {"firewall": RIGHT.model_copy(update={"intact": False})},
        "is not the one of this layout, or was edited",
    ),
    "another": (
        {"firewall": RIGHT.model_copy(update={"mark": "0123"})},
        "is not the one of this layout, or was edited",
    ),
    "on trial": (
        {"firewall": RIGHT.model_copy(update={"tried": True})},
        "is not the one of this layout, or was edited",
    ),
    "unit stopped": ({"units": {**walled(WALLED)["b"].units, UNIT: unit("inactive")}}, f"{UNIT} is not active"),
}


@pytest.mark.parametrize("harm", HARM)
def test_what_is_wrong_with_it_is_said_and_mended_on_that_box_alone(harm: str) -> None:
    changes, told = HARM[harm]
    seen = walled(WALLED, b=changes)
    problems = assess(seen, "a", "office").problems
    assert len(problems) == 1 and problems[0].startswith("b: ") and told in problems[0]
    assert steps(plan(WALLED, WALLED, seen, generation=1)) == ["prepare.apply_firewall.b"]


def test_a_firewall_that_is_right_needs_nothing_and_one_that_should_not_be_there_goes() -> None:
    assert plan(WALLED, WALLED, walled(WALLED), generation=1).nothing_to_do()
    assert assess(walled(WALLED), "a", "office").problems == []
    seen = able(OPEN, b={"firewall": RIGHT})
    (problem,) = assess(seen, "a", "office").problems
    assert "b: a firewall of fleetctl is loaded" in problem
    assert steps(plan(OPEN, OPEN, seen, generation=1)) == ["settle.remove_firewall.b"]


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"nft": None}, "b: nftables is not installed: fleetctl setup b --only packages"),
        ({"firewall": FirewallFacts(loaded=True)}, "b: there is a table inet fleetctl that fleetctl did not load"),
    ],
)
def test_it_is_refused_where_it_cannot_be_or_would_replace_what_is_not_fleetctls(
    facts: dict[str, Any], told: str
) -> None:
    with pytest.raises(RefusedError, match=told):
        plan(OPEN, WALLED, able(OPEN, b=facts))


LISTED = """table inet fleetctl {
\tset engines {
\t\ttype inet_service
\t\telements = { 8000, 8001 }
\t}

\tset refused_ip4 {
\t\ttype ipv4_addr
\t\tflags dynamic,timeout
\t\ttimeout 1d
\t\telements = { 10.1.1.1 expires 23h59m59s992ms, 10.1.1.2 timeout 1d expires 23h,
\t\t\t     10.1.1.3 expires 1h }
\t}

\tset refused_ip6 {
\t\ttype ipv6_addr
\t\tflags dynamic,timeout
\t\ttimeout 1d
\t\telements = { fd00::1 expires 5s }
\t}
}
"""


def test_those_who_were_refused_are_read_from_the_table_and_do_not_make_it_another() -> None:
    assert refused(LISTED) == ["10.1.1.1", "10.1.1.2", "10.1.1.3", "fd00::1"]
    fresh = without_refused(LISTED)
    assert "elements = { 8000, 8001 }" in fresh and "expires" not in fresh
    assert (refused(fresh), without_refused(fresh)) == ([], fresh)
    seen = walled(WALLED, b={"firewall": RIGHT.model_copy(update={"refused": tuple(refused(LISTED)) * 2})})
    (note,) = assess(seen, "a", "office").notes
    assert note.startswith(
        "b: within a day the firewall refused 10.1.1.1, 10.1.1.2, 10.1.1.3, fd00::1, 10.1.1.1 and others"
    )
    assert seen["b"].digest() == walled(WALLED)["b"].digest()
