"""Two layouts compared on real boxes: from loads that were kept, and by measuring both with the moves between them."""

from __future__ import annotations

import json
import signal
from typing import Any

from moving import BOXES, COPY, Moving, Ran, Running

BRIEF = ("--duration", "2s", "--warm-up", "500ms", "--mix", "agent", "-c", "4")
FILE = "/var/lib/fleetctl/benches.jsonl"


def compared(ran: Ran) -> dict[str, Any]:
    """The comparison that a command has to end with."""
    assert ran.rc == 0, ran
    return dict(next(event for event in ran.events if event["type"] == "comparison"))


def kept(moving: Moving) -> list[dict[str, Any]]:
    """The loads that the boxes keep."""
    return [json.loads(line) for line in moving.sh("box1", f"cat {FILE} 2>/dev/null || true").splitlines()]


def test_both_layouts_are_measured_with_a_move_there_and_one_back_and_compared_later_from_what_was_kept(
    fresh: Moving,
) -> None:
    fresh.be_in("split")
    before = fresh.status()
    nothing = compared(fresh.run("compare", "split", "replicas"))
    assert [side["run"] for side in nothing["layouts"]] == [None, None]
    assert "fleetctl bench standin --through-proxy --mix chat" in nothing["missing"]["split"]
    assert nothing["missing"]["replicas"].startswith("fleetctl cutover --to replicas; ")

    refused = fresh.run("compare", "split", "replicas", "--run", *BRIEF)
    assert (refused.rc, "--yes" in refused.said) == (2, True), refused
    assert kept(fresh) == [] and fresh.status()["generation"] == before["generation"]

    found = compared(fresh.run("compare", "split", "replicas", "--run", *BRIEF, "--target", "ttft=5s", "--yes"))
    after = fresh.status()
    assert (after["layout"], after["generation"], after["exit"]) == ("split", before["generation"], 0)
    split, replicas = found["layouts"]
    assert (split["live"], replicas["live"]) == (True, False)
    for side in (split, replicas):
        assert side["run"]["figures"]["answered"] > 0 and side["run"]["figures"]["errors"] == {}
        assert side["run"]["target"]["ttft"] == 5 and side["run"]["figures"]["good_share"] == 1
        assert side["run"]["load"] == split["run"]["load"]
        assert all(room["logged"] for room in side["cache"]), side
    assert [loss["share"] for loss in split["restart"]] == [1, 1]
    assert sorted(loss["share"] for loss in replicas["restart"]) == [0.5, 0.5]
    for move in found["moves"]:
        assert move["measured"][0]["gap"] > 0, move
        assert move["client"]["failed"] == {}, move
        assert move["client"]["longest"] > 0.8 * move["measured"][0]["gap"] - 0.5, move
    assert {move["measured"][0]["operation"] for move in found["moves"]} == {"cutover", "rollback"}
    assert found["missing"] == {} and "given up" in found["conclusion"]
    assert [run["layout"] for run in kept(fresh)] == ["split", "replicas"]

    again = compared(fresh.run("compare", "replicas", "split"))
    assert [side["run"] for side in again["layouts"]] == [replicas["run"], split["run"]]
    other = fresh.run("bench", "--through-proxy", *BRIEF, "--seed", "7", "--yes")
    assert other.rc == 0, other
    assert any("kept for `fleetctl compare`" in event.get("text", "") for event in other.events)
    apart = compared(fresh.run("compare", "split", "replicas", "--seed", "7"))
    assert [bool(side["run"]) for side in apart["layouts"]] == [True, False]


def test_an_interrupted_comparison_ends_in_the_layout_where_it_began(fresh: Moving) -> None:
    fresh.be_in("split")
    generation = fresh.status()["generation"]
    running = fresh.start("compare", "split", "replicas", "--run", *BRIEF[2:], "--duration", "60s", "--yes")
    running.until_event("note")
    running.process.send_signal(signal.SIGTERM)  # in the first load: nothing was moved yet
    first = running.finish()
    assert first.rc == 130 and "the fleet is in split, where it began" in first.said, first
    assert kept(fresh) == []

    running = fresh.start("compare", "split", "replicas", "--run", *BRIEF, "--yes")
    running.until_event("measured")
    running.until("switch.start_engine")  # in the move
    running.process.send_signal(signal.SIGINT)
    second = running.finish()
    assert second.rc == 130 and "the fleet is in split, where it began" in second.said, second
    assert fresh.status()["generation"] == generation

    running = fresh.start("compare", "split", "replicas", "--run", *BRIEF, "--yes")
    running.until("settle.make_current", "done")
    running.until_event("note")
    running.process.send_signal(signal.SIGINT)  # in the second load
    third = running.finish()
    assert third.rc == 130 and "the fleet is in split, where it began" in third.said, third
    after = fresh.status()
    assert (after["layout"], after["generation"], after["exit"]) == ("split", generation, 0)
    assert {run["layout"] for run in kept(fresh)} == {"split"}
    assert fresh.answers()


def in_the_second_load(moving: Moving, duration: str) -> Running:
    """A comparison that has moved from split to replicas and is sending its load there."""
    running = moving.start("compare", "split", "replicas", "--run", *BRIEF[2:], "--duration", duration, "--yes")
    running.until("settle.make_current", "done")
    running.until_event("note")
    return running


def test_a_load_that_fails_ends_it_in_the_layout_where_it_began(fresh: Moving) -> None:
    fresh.be_in("split")
    generation = fresh.status()["generation"]
    running = in_the_second_load(fresh, "3s")
    for box in BOXES:
        fresh.sh(box, f"systemctl stop {COPY}")
    ran = running.finish()
    assert ran.rc in (1, 5) and "the fleet is in split, where it began" in ran.said, ran
    assert [run["layout"] for run in kept(fresh)] == ["split"]
    after = fresh.status()
    assert (after["layout"], after["generation"], after["exit"]) == ("split", generation, 0)


def test_a_fleet_that_somebody_else_moves_meanwhile_is_left_where_they_moved_it(fresh: Moving) -> None:
    fresh.be_in("split")
    running = in_the_second_load(fresh, "30s")
    fresh.cutover("split")
    running.process.send_signal(signal.SIGINT)
    ran = running.finish()
    # On a slow machine the load ends in the middle of the other's move: then the fleet is held, and left as well.
    assert (ran.rc == 130 and "somebody has moved the fleet meanwhile, to split" in ran.said) or ran.rc == 4, ran
    assert [run["layout"] for run in kept(fresh)] == ["split"]
    after = fresh.status()
    assert (after["layout"], after["generation"], after["unfinished"]) == ("split", 3, None)
