"""What separates the boxes as they are from a layout: exactly that, and nothing when there is nothing."""

from __future__ import annotations

from typing import Any

import pytest
from planned import BEFORE, COPY, OFFICE, PROXY, SPLIT, box_in, boxes_in, layout, plan, process, unit

from fleetctl.plan.difference import compare, description, engine_name
from fleetctl.plan.merged import merged_proxy
from fleetctl.render.release import Release


def done_by(facts: dict[str, Any], target: Release, source: Release | None = None) -> dict[str, Any]:
    """The parts of the difference that are not empty, by box."""
    found = compare(source or target, target, facts, 1)
    return {
        name: {key: value for key, value in vars(box).items() if value and key not in ("box", "at_boot")}
        for name, box in found.boxes.items()
    }


@pytest.mark.parametrize("name", ["split", "replicas"])
def test_boxes_that_are_in_the_layout_need_nothing(name: str) -> None:
    release = layout(name)
    assert compare(release, release, boxes_in(release), 1).nothing()


def test_from_split_to_replicas_every_box_changes_its_unit_and_the_proxy_its_servers() -> None:
    split, replicas = layout("split"), layout("replicas")
    found = compare(split, replicas, boxes_in(split), 2)
    for box in found.boxes.values():
        assert list(box.stop) == [SPLIT] and list(box.start) == [COPY]
        assert (box.enable, box.disable, box.generation) == ([COPY], [SPLIT], True)
        assert f"/etc/systemd/system/{SPLIT}" in box.remove and f"/etc/systemd/system/{COPY}" in box.install
    assert found.close == ["qwen/split-a"]
    assert [engine.server for engine in found.open] == ["replicas-a", "replicas-b"]
    assert found.load is None and found.settle_proxy


def right(release: Release, box: str) -> str:
    engine, rank = release.ranks_on(box)[0]
    return engine_name(engine, rank, release.layout)


RIGHT_COPY, RIGHT_SPLIT = right(layout("replicas"), "b"), right(layout("split"), "b")


@pytest.mark.parametrize(
    ("name", "seen", "starts"),
    [
        ("replicas", unit("inactive"), ["replicas/qwen@b"]),
        ("replicas", unit("failed"), ["replicas/qwen@b"]),
        ("replicas", unit(engine="replicas/qwen@0123"), ["replicas/qwen@b"]),
        ("replicas", unit(engine=None), ["replicas/qwen@b"]),
        ("replicas", unit("activating", engine=RIGHT_COPY), []),
        ("split", unit("inactive"), ["split/qwen"]),
        ("split", unit("active", engine=RIGHT_SPLIT), []),
    ],
)
def test_an_engine_starts_when_one_of_its_ranks_does_not_run_the_right_build(
    name: str, seen: Any, starts: list[str]
) -> None:
    release = layout(name)
    facts = boxes_in(release)
    facts["b"] = box_in(release, "b", 1, units={release.ranks_on("b")[0][1].unit: seen})
    found = compare(release, release, facts, 1)
    assert [engine.id for engine in found.start] == starts
    if name == "split" and starts:  # the rank that still runs is stopped, both start
        assert [list(box.stop) for box in found.boxes.values()] == [[SPLIT], []]
        assert [list(box.start) for box in found.boxes.values()] == [[SPLIT], [SPLIT]]


def test_a_copy_that_systemd_is_about_to_restart_is_stopped_and_started() -> None:
    release = layout("replicas")
    waiting = unit("activating").model_copy(update={"sub": "auto-restart"})
    facts = boxes_in(release, b={"units": {COPY: waiting}})
    found = compare(release, release, facts, 1)
    assert list(found.boxes["b"].stop) == list(found.boxes["b"].start) == [COPY]
    assert found.close == ["qwen/replicas-b"]


@pytest.mark.parametrize(
    ("more", "wants"),
    [
        ({"drift": ("/etc/fleetctl/bin/ready.py",)}, {"install": ["/etc/fleetctl/bin/ready.py"]}),
        ({"generation": 7}, {"generation": True}),
        ({"processes": (process("split/qwen@0123"),)}, {"leftovers": ["split/qwen@0123"]}),
        ({"processes": (process(None),)}, {}),
        # Not listed any more: only a rollback gives it its state back.
        ({"superseded": {"old.service": unit()}}, {}),
    ],
)
def test_what_one_box_lacks_is_done_on_that_box_only(more: dict[str, Any], wants: dict[str, Any]) -> None:
    release = layout("replicas")
    assert done_by(boxes_in(release, b=more), release) == {"a": {}, "b": wants}


@pytest.mark.parametrize(
    ("seen", "wants"),
    [
        (unit("active", "disabled"), {"enable": [COPY]}),
        (unit("active", "enabled-runtime"), {}),
    ],
)
def test_enablement_is_part_of_the_layout(seen: Any, wants: dict[str, Any]) -> None:
    release = layout("replicas")
    units = {COPY: seen.model_copy(update={"engine": right(release, "b")})}
    assert done_by(boxes_in(release, b={"units": units}), release) == {"a": {}, "b": wants}


@pytest.mark.parametrize(
    ("old", "wants"),
    [
        (unit("active", "enabled"), ["old.service"]),
        (unit("active", "disabled"), ["old.service"]),
        (unit("inactive", "enabled"), ["old.service"]),
        (unit("activating", "static"), ["old.service"]),
        (unit("inactive", "disabled"), []),
        (unit("failed", "disabled"), []),
        (unit("inactive", "").model_copy(update={"load": "not-found"}), []),
    ],
)
def test_a_superseded_unit_is_put_away_where_it_runs_or_would_start(old: Any, wants: list[str]) -> None:
    release = layout("replicas", superseded=["old.service"])
    facts = boxes_in(release)
    units = {**facts["b"].units, "old.service": old}
    found = compare(release, release, boxes_in(release, b={"units": units}), 1)
    assert (found.boxes["a"].supersede, found.boxes["b"].supersede) == ([], wants)


def test_units_of_kept_generations_are_stopped_disabled_and_removed() -> None:
    release = layout("replicas")
    units = {**boxes_in(release)["b"].units, SPLIT: unit(engine="split/qwen@0123")}
    found = compare(release, release, boxes_in(release, b={"units": units, "ours": (COPY, SPLIT)}), 1)
    box = found.boxes["b"]
    assert (list(box.stop), box.disable, box.remove) == ([SPLIT], [SPLIT], [f"/etc/systemd/system/{SPLIT}"])


def test_a_layout_added_to_the_file_starts_nothing_and_loads_the_proxy() -> None:
    before = layout("replicas")
    after = layout("replicas", layouts__pairs={"qwen": {"copies": ["b"]}})
    found = compare(before, after, boxes_in(before), 2)
    assert (found.start, found.close, found.open) == ([], [], [])
    assert found.load is not None and found.settle_proxy
    assert [box.install for box in found.boxes.values()] == [
        ["/etc/fleetctl/proxy/haproxy.cfg"],
        [f"/etc/systemd/system/{COPY}"],  # Conflicts= with the new layout's unit: no reason to restart
    ]


def test_an_argument_of_one_copy_restarts_that_copy() -> None:
    before = layout("replicas")
    copies = {"a": {}, "b": {"arguments": ["--seed", "7"]}}
    after = layout("replicas", layouts__replicas={"qwen": {"copies": copies}})
    found = compare(before, after, boxes_in(before), 2)
    assert [engine.id for engine in found.start] == ["replicas/qwen@b"]
    assert (found.close, found.load) == (["qwen/replicas-b"], None)


def test_an_engine_that_runs_and_gets_no_requests_is_proved_and_opened() -> None:
    release = layout("replicas")
    facts = boxes_in(release)
    assert facts["a"].proxy is not None
    servers = {**facts["a"].proxy.servers, "qwen/replicas-b": {"status": "DOWN"}}
    facts = boxes_in(release, a={"proxy": {"description": facts["a"].proxy.description, "servers": servers}})
    found = compare(release, release, facts, 1)
    assert found.start == []
    assert [engine.id for engine in found.prove] == [engine.id for engine in found.open] == ["replicas/qwen@b"]


def test_before_the_first_cutover_everything_is_to_be_done() -> None:
    release = layout("split")
    found = compare(BEFORE, release, boxes_in(BEFORE, None), 1)
    assert [engine.id for engine in found.start] == ["split/qwen"]
    assert found.close == [] and found.load is not None and found.settle_proxy
    assert found.boxes["a"].enable == [PROXY, SPLIT]
    assert found.boxes["b"].enable == [SPLIT]


def test_back_to_before_fleetctl_requests_finish_and_nothing_of_it_stays() -> None:
    release = layout("split", superseded=["old.service"])
    seen = boxes_in(release, a={"superseded": {"old.service": unit()}})
    found = compare(release, BEFORE, seen, None, back=True)
    assert found.close == ["qwen/split-a"] and found.open == [] and found.load is None and found.settle_proxy
    assert found.boxes["a"].give_back == ["old.service"]
    assert found.boxes["a"].disable == [PROXY, SPLIT]
    assert set(found.boxes["b"].remove) == {file.path for file in release.files["b"]}


# The proxy while a move is under way


def servers(config: Any) -> dict[str, list[str]]:
    return {b.name: [f"{s.name}={s.address}:{s.port}" for s in b.servers] for b in config.backends}


@pytest.mark.parametrize(
    ("source", "target", "expected", "enabled"),
    [
        # Nothing was there: the target's servers, none enabled.
        (
            BEFORE,
            layout("split"),
            ["split-a=10.0.0.1:8000", "replicas-a=10.0.0.1:8000", "replicas-b=10.0.0.2:8000"],
            None,
        ),
        # Another box has the proxy: it begins as on a new one.
        (
            layout("split"),
            layout("split", proxy={"box": "b"}),
            ["split-a=10.0.0.1:8000", "replicas-a=10.0.0.1:8000", "replicas-b=10.0.0.2:8000"],
            None,
        ),
        # The layout that is left is not in the file any more: its server stays until the engine stops.
        (
            layout("split"),
            layout("solo", layouts={"solo": {"qwen": {"copies": ["b"]}}}),
            ["solo-b=10.0.0.2:8000", "split-a=10.0.0.1:8000", "replicas-a=10.0.0.1:8000", "replicas-b=10.0.0.2:8000"],
            "split",
        ),
        # The running engine has another port than it will have: it keeps that until the switch.
        (
            layout("replicas"),
            layout("replicas", layouts__replicas={"qwen": {"copies": ["a", "b"], "port": 9000}}),
            ["split-a=10.0.0.1:8000", "replicas-a=10.0.0.1:8000", "replicas-b=10.0.0.2:8000"],
            "replicas",
        ),
        # A server that is not of the running layout has its new port at once.
        (
            layout("split"),
            layout("replicas", layouts__replicas={"qwen": {"copies": ["a", "b"], "port": 9000}}),
            ["split-a=10.0.0.1:8000", "replicas-a=10.0.0.1:9000", "replicas-b=10.0.0.2:9000"],
            "split",
        ),
    ],
)
def test_during_a_move_the_proxy_has_the_servers_of_both(
    source: Release, target: Release, expected: list[str], enabled: str | None
) -> None:
    assert target.proxy is not None
    merged = merged_proxy(source.proxy, target.proxy)
    assert (servers(merged), merged.layout) == ({"qwen": expected}, enabled)


def test_a_proxy_that_already_has_both_is_not_loaded_again() -> None:
    split, replicas = layout("split"), layout("replicas")
    assert split.proxy and replicas.proxy
    assert description(merged_proxy(split.proxy, replicas.proxy)) == description(split.proxy)


def _builds(*order: str) -> dict[str, Any]:
    """A file in which builds of a model have the same name for clients, in an order, each in a layout of its own."""
    builds = {name: {**OFFICE["models"]["qwen"], "served_as": ["qwen"], "weights_size": "20GiB"} for name in order}
    return {"models": builds, "layouts": {f"of-{name}": {name: {"copies": ["a", "b"]}} for name in sorted(order)}}


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (layout("of-old", **_builds("old")), layout("of-new", **_builds("old", "new"))),
        (layout("of-old", **_builds("old")), layout("of-new", **_builds("new", "old"))),
        (layout("of-new", **_builds("new", "old")), layout("of-old", **_builds("old"))),
        (layout("of-new", **_builds("new", "old")), layout("of-old", **_builds("old", "new"))),
    ],
    ids=["below the old one", "above it", "back", "the other way round"],
)
def test_a_new_build_wherever_it_stands_in_the_file_is_moved_to_with_requests_held_and_drained(
    source: Release, target: Release
) -> None:
    assert source.proxy is not None and target.proxy is not None
    during = merged_proxy(source.proxy, target.proxy)
    ((backend, servers),) = [(one.name, one.servers) for one in during.backends if "qwen" in one.served_as]
    serving = {f"{backend}/{server.name}" for server in servers if server.layout == source.layout}
    assert len(serving) == 2
    made = plan(source, target, boxes_in(source))
    for kind in ("hold", "drain"):
        assert [set(step.params["servers"]) for step in made.steps if step.kind == kind] == [serving]


def test_a_new_build_in_the_file_alone_takes_no_engine_out_of_the_proxy() -> None:
    source, target = layout("of-old", **_builds("old")), layout("of-old", **_builds("new", "old"))
    made = plan(source, target, boxes_in(source), book="rolling")
    assert not {"hold", "drain", "stop_engine"} & {step.kind for step in made.steps}
