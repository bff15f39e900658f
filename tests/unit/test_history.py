"""The history of the fleet: what the boxes keep of every change, and how one story is made of what they remember."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table
from rich.text import Text

from fleetctl.cli.output import console, emit, hang
from fleetctl.cli.show_history import show_steps
from fleetctl.facts.history import HistoryFacts
from fleetctl.onbox import guard, history, journal, kept, lock
from fleetctl.onbox.main import Call
from fleetctl.run.history import changes, find, steps_of

CALL = Call(1, lambda message: None)
META = {"operation": "cutover", "from_layout": "split", "to_layout": "replicas", "who": "ann@desk", "started": 1.0}
LOCK = {"token": "t", "who": "a", "host": "h", "pid": 1, "command": "c", "age": 1.0, "silent": 0.5}
EVENTS = [
    {"at": 1.0, "kind": "note", "unit": "", "why": "on guard: restart"},
    {"at": 2.0, "kind": "note", "unit": "e.service", "why": "out of the proxy: 1.9 GiB available"},
    {"at": 3.0, "kind": "stop", "unit": "e.service", "why": "1.2 GiB available"},
    {"at": 4.0, "kind": "ask", "unit": "e.service", "why": "to come back"},
    {"at": 5.0, "kind": "note", "unit": "e.service", "why": "back in the proxy: it answered"},
]


# On a box


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kept, "VAR", str(tmp_path))
    monkeypatch.setattr(kept, "GENERATIONS", str(tmp_path / "generations"))
    monkeypatch.setattr(kept, "CURRENT", str(tmp_path / "current"))
    monkeypatch.setattr(guard, "FOLDER", str(tmp_path / "guard"))
    monkeypatch.setattr(journal, "MOVES", str(tmp_path / "moves"))
    monkeypatch.setattr(lock, "LOCK", str(tmp_path / "lock.json"))
    (tmp_path / "moves").mkdir()
    return tmp_path


def begin(box: Path, name: str, at: float, *records: dict[str, Any], **meta: Any) -> None:
    """A move that this box began at that time; the records are its journal's."""
    folder = box / "moves" / name
    folder.mkdir()
    (folder / "meta.json").write_text(json.dumps({**META, **meta}))
    (folder / "plan.json").write_text(json.dumps({"from_generation": 1, "generation": 2}))
    (folder / "journal.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    os.utime(folder / "meta.json", (at, at))


DONE = {"type": "end", "result": "done", "at": 43.0, "gap": 11.0, "cut": 0, "by": "ann@desk"}


def remembered(box: Path, last: int = 100) -> list[dict[str, Any]]:
    return list(history.history(CALL, last)["moves"])


def test_a_move_that_is_removed_leaves_a_line_that_tells_the_same(box: Path) -> None:
    for number in range(5):
        begin(box, f"m{number}", number, DONE)
    before = remembered(box)
    assert before[0] == before[0] | {
        "move": "m0",
        "operation": "cutover",
        "who": "ann@desk",
        "from_generation": 1,
        "generation": 2,
        "result": "done",
        "gap": 11.0,
        "ended": 43.0,
    }
    assert history.moves_prune(CALL, keep=2) == {"removed": ["m0", "m1", "m2"]}
    assert remembered(box) == before
    assert [move["move"] for move in remembered(box, last=3)] == ["m2", "m3", "m4"]
    assert (box / "history.jsonl").stat().st_mode & 0o077 == 0


def test_a_removal_that_was_cut_off_between_line_and_folder_tells_the_move_once(box: Path) -> None:
    for number in range(3):
        begin(box, f"m{number}", number, DONE)
    history._write_down(history.told_of("m0"))
    assert [move["move"] for move in remembered(box)] == ["m0", "m1", "m2"]
    history.moves_prune(CALL, keep=1)
    assert len((box / "history.jsonl").read_text().splitlines()) == 2
    assert [move["move"] for move in remembered(box)] == ["m0", "m1", "m2"]


def test_the_log_does_not_grow_for_ever_and_a_torn_line_swallows_nothing(
    box: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "LIMIT", 2000)
    for number in range(60):
        begin(box, f"m{number:02}", number, DONE)
        history.moves_prune(CALL, keep=1)
        if number == 30:
            with (box / "history.jsonl").open("a") as torn:
                torn.write('{"move": "ha')
    told = [move["move"] for move in remembered(box)]
    assert told[-1] == "m59" and told == [f"m{number:02}" for number in range(60 - len(told), 60)]
    assert sum(path.stat().st_size for path in box.glob("history*.jsonl")) < 2 * 2000 + 1000


def test_what_cannot_be_written_down_is_not_removed(box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        begin(box, f"m{number}", number, DONE)
    monkeypatch.setattr(history, "_write_down", lambda line: False)
    assert history.moves_prune(CALL, keep=1) == {"removed": []}
    assert len(remembered(box)) == 3


def test_of_the_guard_is_told_what_changed_something(box: Path) -> None:
    (box / "guard").mkdir()
    (box / "guard/events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in EVENTS))
    acts = history.history(CALL, 10)["acts"]
    assert [act["at"] for act in acts] == [2.0, 3.0, 5.0]


# All boxes together


def move(name: str = "m", written: float = 10.0, **more: Any) -> dict[str, Any]:
    return {**META, "move": name, "written": written, "result": "done", "ended": 42.5, **more}


def told(*moves: dict[str, Any], **more: Any) -> HistoryFacts:
    return HistoryFacts.model_validate({"moves": moves, **more})


@pytest.mark.parametrize(
    ("known", "alive", "result"),
    [
        ({"result": "done"}, False, "done"),
        ({"result": "undone", "why": "box2: the engine ended"}, False, "failed"),
        ({"result": "undone", "why": "interrupted (SIGINT)"}, False, "undone"),
        ({"result": "undone", "why": "undone on request after it was cut off"}, False, "undone"),
        ({"result": None}, False, "cut off"),
        ({"result": None, "why": "box2: the engine ended"}, False, "cut off"),
        ({"result": None}, True, "under way"),
    ],
)
def test_how_a_change_ended(known: dict[str, Any], alive: bool, result: str) -> None:
    (change,) = changes({"a": told(move(**known), lock=LOCK if alive else None)}, 20)
    assert (change.result, change.why) == (result, known.get("why"))


def test_a_move_that_several_boxes_remember_is_told_once_with_its_end() -> None:
    (change,) = changes({"a": told(move(result=None)), "b": told(move(by="bob@laptop"))}, 20)
    assert (change.boxes, change.result, change.took) == (("a", "b"), "done", 41.5)
    assert (change.who, change.ended_by) == ("ann@desk", "bob@laptop")


def test_clocks_of_two_operators_that_differ_give_no_duration() -> None:
    (change,) = changes({"a": told(move(started=100.0, ended=42.0))}, 20)
    assert change.took is None


def test_the_newest_come_first_with_what_the_guards_did_and_what_was_cut_off_however_old() -> None:
    facts = {
        "a": told(move("old", 1.0, result=None), move("m1", 3.0), move("m2", 8.0)),
        "b": told(acts=[{**EVENTS[2], "at": 5.0}, {**EVENTS[1], "at": 4.0}]),
    }
    found = changes(facts, 3)
    assert [change.move or (change.who, change.operation, change.why) for change in found] == [
        "m2",
        ("guard", "stop", "1.2 GiB available"),
        ("guard", "out of the proxy", "1.9 GiB available"),
        "old",
    ]


def test_what_a_build_scored_is_told_with_tool_use_first_however_it_was_written_down() -> None:
    seventy, ninety = {"score": 86, "before": 75}, {"score": 93, "before": 91}
    scores = {"one": {"tasks.jsonl@0123456789ab": ninety, "tools": seventy}, "two": {"score": 86, "before": None}}
    (change,) = changes({"a": told(move(scores=scores))}, 20)
    assert change.scores == {"one": "tools 75 → 86, tasks.jsonl 91 → 93", "two": "tools 86"}


def test_a_move_is_found_by_its_beginning_or_its_end() -> None:
    facts = {"a": told(move("20261130T1-aa"), move("20261130T2-ab"))}
    assert find(facts, "20261130T1-aa") == find(facts, "aa") == find(facts, "20261130T1") == ["20261130T1-aa"]
    assert len(find(facts, "2026")) == 2 and find(facts, "zz") == []


def test_the_steps_of_a_move_are_told_whatever_version_wrote_them() -> None:
    steps = [{"id": name, "stage": "s", "summary": f"does {name}"} for name in ("one", "two", "three")]
    records = [
        {"type": "begin", "step": "one", "at": 1.0},
        {"type": "done", "step": "one", "at": 3.5},
        {"type": "begin", "step": "two", "at": 4.0},
        {"type": "undoing", "why": "x"},
        {"type": "undone", "step": "one", "at": 5.0},
        {"type": "of another version", "step": "two"},
    ]
    seen = [(step.id, step.state, step.took) for step in steps_of({"plan": {"steps": steps}, "records": records})]
    assert seen == [("one", "undone", 2.5), ("two", "begun", None), ("three", "waiting", None)]
    assert [step.summary for step in steps_of({"plan": None, "records": records})] == ["one", "two"]


@pytest.mark.parametrize("at", [-1e18, 1e300, float("nan"), float("inf"), 4e9, 9e15])
def test_a_time_that_none_can_be_is_shown_and_stops_nothing(at: float, capsys: pytest.CaptureFixture[str]) -> None:
    moves = [{"move": "m", "written": at, "operation": "apply", "started": at, "ended": 1.0, "result": "done"}]
    (change,) = changes({"a": HistoryFacts.model_validate({"moves": moves})}, 20)
    show_steps(change, "a", steps_of({"plan": None, "records": [{"type": "begin", "step": "s", "at": at}]}), console())
    emit("change", **asdict(change))
    told = capsys.readouterr().out
    assert "apply nothing" in told
    json.loads(told.splitlines()[-1], parse_constant=pytest.fail)


@pytest.mark.parametrize("wrong", [{"operation": None}, {"scores": 5}, {"gap": "long"}, {"to_layout": ["x"]}])
def test_a_move_whose_data_were_damaged_hides_no_other_and_is_told(wrong: dict[str, Any]) -> None:
    good = {"move": "one", "written": 1.0, "operation": "apply", "result": "done"}
    facts = HistoryFacts.model_validate({"moves": [good, {**good, "move": "two", **wrong}], "acts": [{"at": "x"}]})
    assert [(one.move, one.operation) for one in facts.moves] == [("one", "apply"), ("two", "change")]


@pytest.mark.parametrize("written", ["1e400", "1" + "0" * 400, "NaN", "-5", '"5"', "null"])
def test_a_line_with_a_time_that_none_can_be_hides_no_other(box: Path, written: str) -> None:
    (Path(kept.VAR) / "history.jsonl").write_text(
        f'{{"move": "one", "written": {written}}}\n{{"move": "two", "written": 5, "operation": "apply"}}\n'
    )
    told = history.history(Call(1, lambda message: None), last=20)
    assert [move["move"] for move in told["moves"]] == ["two"]


def test_nothing_that_a_terminal_would_obey_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Words of engines and models are in what a move failed of, and names on boxes in what doctor saw."""
    hostile = "a\x1b]0;title\x07b\x9b2J\u202ec\ud800\r"
    out = console()
    table = Table()
    table.add_row(hostile)
    for what in (hostile, Text(hostile, style="bold"), table):
        out.print(what, markup=False)
    hang(out, Text(hostile), 2)
    assert not set(capsys.readouterr().out) & set("\x1b\x07\x9b\u202e\ud800\r")
