"""The demo: moves under steady traffic that its clients do not notice, and a report whose last line is JSON."""

from __future__ import annotations

import json
import time

import pytest
from moving import Moving
from rich.console import Console

from fleetctl.cli.lab_demo import play
from fleetctl.lab.demo import client_address, run_move, to_split
from fleetctl.lab.traffic import Traffic


def test_no_request_is_lost_on_the_way_to_replicas_and_back(moving: Moving) -> None:
    out = Console(record=True, width=160)
    told = play(moving.file(), out, rate=8.0, with_timeline=True)
    seen = out.export_text()
    assert told.exit_code == 0, seen
    assert not told.failed, seen
    assert [figure.to for figure in told.figures] == ["replicas", "split"]
    for figure in told.figures:
        assert figure.requests > 0
        assert figure.held > 0
        # What it took is the machine's matter here; that the parts make the whole is not.
        assert figure.gap_s and figure.engine_load_s and figure.recovery_s is not None
        assert figure.engine_stop_s is not None and figure.overhead_s is not None
        assert figure.overhead_s == pytest.approx(figure.gap_s - figure.engine_stop_s - figure.engine_load_s, abs=0.01)
        assert 0 <= figure.recovery_s < figure.gap_s
    assert set(json.loads(told.json())["moves"][0]) == {
        "to", "requests", "failed", "held", "gap_s", "engine_load_s", "overhead_s", "recovery_s",
    }  # fmt: skip
    assert "What the moves cost the clients" in seen
    assert "the first answer reaches a client" in seen
    assert moving.status()["layout"] == "split"


def test_it_begins_in_split_from_whatever_layout_the_fleet_is_in(moving: Moving) -> None:
    moving.be_in("replicas")
    assert to_split(moving.file(), lambda text: None, lambda event: None).done
    assert moving.status()["layout"] == "split"


def test_it_first_undoes_a_move_that_was_cut_off(moving: Moving) -> None:
    moving.be_in("split")
    running = moving.start("cutover", "--to", "replicas", "--yes")
    running.until("switch.start_engine")
    running.process.kill()
    running.finish()
    said: list[str] = []
    move = to_split(moving.file(), said.append, lambda event: None)
    assert move.done, move.error
    assert "cut off" in said[0]
    assert moving.status()["layout"] == "split"


def test_a_move_that_fails_is_told_with_its_reason_and_its_exit_status(moving: Moving) -> None:
    move = run_move(["cutover", "--to", "nowhere", "--fleet", str(moving.file())], "nowhere", lambda event: None)
    assert move.exit_code == 2
    assert "nowhere" in (move.error or "")


def test_long_streams_survive_a_move_that_reloads_the_proxy(moving: Moving) -> None:
    """They go on in the proxy's old process, and the connections they leave behind must not lead to the old engine."""
    text = moving.with_environment(STANDIN_SPEED="1", STANDIN_ANSWER_TOKENS="60")
    before, after = moving.file(text), moving.file(text.replace("hold: 10m", "hold: 9m"))
    assert before.read_text() != after.read_text()
    assert to_split(before, lambda words: None, lambda event: None).done
    url, model = client_address(before)
    with Traffic(url, model, rate=2.0, max_tokens=60) as traffic:
        time.sleep(4.0)
        away = run_move(["cutover", "--to", "replicas", "--fleet", str(after)], "replicas", lambda event: None)
        time.sleep(2.0)
        back = run_move(["rollback", "--fleet", str(after)], "split", lambda event: None)
    assert (away.error, back.error) == (None, None)
    for move in (away, back):
        assert move.results("load_proxy"), "the proxy was not reloaded"
        assert move.results("drain")[0]["cut"] == 0
    assert [request.error for request in traffic.requests() if request.failed] == []
