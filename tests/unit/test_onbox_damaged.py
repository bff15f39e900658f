"""Files that were damaged or lost with a box: what does not matter is skipped, the rest is named with the way out."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from planned import BEFORE, boxes_in, layout, office

from fleetctl.errors import BoxError, RefusedError, UnfinishedError
from fleetctl.facts.assess import assess
from fleetctl.facts.types import Lock, MoveFacts
from fleetctl.onbox import history, journal, kept, lock, state
from fleetctl.onbox.main import Call, OpError
from fleetctl.remote.errors import ConnectionLost, OpFailed
from fleetctl.run.journal import read_history
from fleetctl.run.planning import Look, Subject, plan_rollback

CALL = Call(1, lambda message: None)
DAMAGE = ["", "{", "\x00\x00\x00", "[]", "null", '{"half": 1}']
LOCK = {"token": "t", "who": "ann@desk", "host": "desk", "pid": 7, "command": "cutover", "since": 1.0, "owner": ""}
META = {"operation": "cutover", "from_layout": None, "to_layout": "x", "who": "ann@desk", "started": 1.0}


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder that stands for a box in generation 2, which keeps 1 too."""
    monkeypatch.setattr(kept, "GENERATIONS", str(tmp_path / "generations"))
    for module in (kept, state):
        monkeypatch.setattr(module, "CURRENT", str(tmp_path / "current"))
        monkeypatch.setattr(module, "SUPERSEDED", str(tmp_path / "superseded.json"))
    monkeypatch.setattr(journal, "MOVES", str(tmp_path / "moves"))
    monkeypatch.setattr(kept, "VAR", str(tmp_path))
    monkeypatch.setattr(lock, "LOCK", str(tmp_path / "lock.json"))
    (tmp_path / "moves").mkdir()
    for number in (1, 2):
        folder = tmp_path / "generations" / str(number)
        folder.mkdir(parents=True)
        (folder / "meta.json").write_text('{"paths": []}')
        (folder / "release.json").write_text('{"fleet": "office"}')
    (tmp_path / "current").symlink_to("generations/2")
    return tmp_path


def test_a_box_whose_files_are_whole_is_in_its_current_generation(box: Path) -> None:
    assert kept.current_generation() == 2
    assert kept.current_facts() == {"generation": 2, "release": {"fleet": "office"}, "notes": []}
    assert list(kept.generations()) == [1, 2]


@pytest.mark.parametrize(
    ("lost", "text"),
    [("generations/2/meta.json", text) for text in DAMAGE]
    + [("generations/2/release.json", text) for text in DAMAGE[:-1]],
)
def test_a_damaged_current_generation_is_named_with_the_way_out(box: Path, lost: str, text: str) -> None:
    (box / lost).write_text(text)
    with pytest.raises(OpError) as caught:
        kept.current_facts()
    assert str(box / lost) in str(caught.value)
    assert f"remove {box}/generations/2, then `fleetctl cutover --to LAYOUT`" in str(caught.value)


def test_a_current_generation_without_its_release_is_damaged(box: Path) -> None:
    (box / "generations/2/release.json").unlink()
    with pytest.raises(OpError, match=r"release\.json is missing: remove"):
        kept.current_facts()


@pytest.mark.parametrize("text", DAMAGE)
def test_an_old_generation_that_is_damaged_counts_as_not_there(box: Path, text: str) -> None:
    (box / "generations/1/meta.json").write_text(text)
    assert list(kept.generations()) == [2]
    assert kept.current_facts()["generation"] == 2
    assert state.generation_read(CALL, 1) is None


def test_current_that_points_at_nothing_is_no_generation_and_noted(box: Path) -> None:
    (box / "generations/2/meta.json").unlink()
    told = kept.current_facts()
    assert (kept.current_generation(), told["generation"], told["release"]) == (None, None, None)
    assert "points at a generation that is not there" in told["notes"][0]
    assert state.generation_current(CALL, 1) == {"before": None}
    assert kept.current_facts()["generation"] == 1


def test_what_current_points_at_is_not_pruned(box: Path) -> None:
    state.generation_current(CALL, 1)
    for number in (3, 4):
        (box / f"generations/{number}").mkdir()
        (box / f"generations/{number}/meta.json").write_text('{"paths": []}')
    assert state.generations_prune(CALL, keep=1, protect=[]) == {"removed": [2, 3]}


@pytest.mark.parametrize("text", DAMAGE[:-1])
def test_a_damaged_record_of_superseded_units_is_named_with_the_way_out(box: Path, text: str) -> None:
    (box / "superseded.json").write_text(text)
    with pytest.raises(OpError, match=r"superseded\.json is damaged .*: remove the file"):
        state.superseded_read(CALL)


def test_the_rollback_of_a_box_in_no_generation_is_refused_with_the_way_out() -> None:
    observed = boxes_in(BEFORE, a={"generation": None, "notes": ("current points at nothing",)})
    nothing: Any = SimpleNamespace()
    subject = Subject(office(), "", nothing)
    with pytest.raises(RefusedError, match="a: current points at nothing") as caught:
        plan_rollback(subject, Look({}, observed), nothing)
    assert "fleetctl cutover --to" in str(caught.value)
    observed = boxes_in(layout("split"), a={"generation": 3, "generations": {1: {}}})
    with pytest.raises(RefusedError, match="a: what it keeps of generation 3") as caught:
        plan_rollback(subject, Look({}, observed), nothing)
    assert "fleetctl cutover --to" in str(caught.value)


def test_status_tells_a_box_that_cannot_tell_from_one_that_cannot_be_reached() -> None:
    observed = {"a": boxes_in(BEFORE, a={"notes": ("current points at nothing",)})["a"]}
    for error, said in (
        (OpFailed("b", "facts", "OpError", "release.json is damaged"), "b: release.json is damaged"),
        (ConnectionLost("b", "no route"), "b cannot be reached: no route"),
        (BoxError("b", "no route"), "b cannot be reached: no route"),
    ):
        found = assess(observed, "a", "office", {"b": error})
        assert found.problems[0] == said
        assert any("a: current points at nothing" in note for note in found.notes)


# The lock


@pytest.mark.parametrize("key", ["token", "who", "host", "pid", "command", "since"])
def test_a_lock_without_all_that_a_lock_has_is_none(box: Path, key: str) -> None:
    whole = LOCK
    (box / "lock.json").write_text(json.dumps(whole))
    told = lock.lock_state()
    assert told is not None
    Lock.model_validate(told)
    (box / "lock.json").write_text(json.dumps({name: value for name, value in whole.items() if name != key}))
    assert lock.lock_state() is None
    (box / "lock.json").write_text(json.dumps({**whole, key: None}))
    assert lock.lock_state() is None


@pytest.mark.parametrize("text", DAMAGE)
def test_a_damaged_lock_says_nothing_about_anybody(box: Path, text: str) -> None:
    (box / "lock.json").write_text(text)
    assert lock.lock_state() is None


# Journals


def begin(box: Path, name: str, at: float, *, ended: bool) -> Path:
    """A move that the box began ``at`` a time of its own clock."""
    folder = box / "moves" / name
    folder.mkdir()
    (folder / "meta.json").write_text(json.dumps(META))
    (folder / "plan.json").write_text(json.dumps({"operation": "cutover", "to_layout": "from the plan"}))
    end = '{"type": "end", "result": "done"}\n{"type": "note", "end": 1}\n{"ty' if ended else ""
    (folder / "journal.jsonl").write_text('{"type": "begin", "step": "end"}\n' + end)
    os.utime(folder / "meta.json", (at, at))
    return folder


def test_a_move_that_was_cut_off_is_told_however_many_have_later_names(box: Path) -> None:
    begin(box, "19990101T000000Z-cut", 50, ended=False)
    for number in range(40):
        begin(box, f"2026{number:04}", 100 + number, ended=True)
    told = journal.moves()
    assert [move["move"] for move in told if move["end"] is None] == ["19990101T000000Z-cut"]
    assert [move["move"] for move in told if move["end"]] == [f"2026{number:04}" for number in range(20, 40)]


def test_moves_are_in_the_order_in_which_the_box_itself_began_them(box: Path) -> None:
    begin(box, "2031-of-a-clock-that-is-ahead", 10, ended=True)
    begin(box, "2026", 20, ended=True)
    begin(box, "2011-of-a-clock-that-is-behind", 30, ended=True)
    told = [move["move"] for move in journal.moves(last=2)]
    assert told == ["2026", "2011-of-a-clock-that-is-behind"]
    assert history.moves_prune(CALL, keep=2) == {"removed": ["2031-of-a-clock-that-is-ahead"]}


def test_pruning_never_removes_a_move_that_was_cut_off(box: Path) -> None:
    for number in range(5):
        begin(box, f"m{number}", number, ended=number != 1)
    assert history.moves_prune(CALL, keep=2) == {"removed": ["m0", "m2"]}


@pytest.mark.parametrize("text", DAMAGE)
def test_damaged_meta_data_do_not_hide_a_move_that_was_cut_off(box: Path, text: str) -> None:
    folder = begin(box, "m", 5, ended=False)
    (folder / "meta.json").write_text(text)
    (move,) = [MoveFacts.model_validate(told) for told in journal.moves()]
    assert (move.move, move.end, move.to_layout) == ("m", None, "from the plan")
    (folder / "plan.json").unlink()
    (move,) = [MoveFacts.model_validate(told) for told in journal.moves()]
    assert (move.move, move.end) == ("m", None)


@pytest.mark.parametrize("text", [None, *DAMAGE])
def test_a_move_whose_plan_is_lost_is_named_with_its_folder_and_the_way_out(box: Path, text: str | None) -> None:
    folder = begin(box, "m", 5, ended=False)
    (folder / "plan.json").unlink()
    if text is not None:
        (folder / "plan.json").write_text(text)
    boxes: Any = {"box1": SimpleNamespace(call=lambda op, move: journal.journal_read(CALL, move))}
    with pytest.raises(UnfinishedError) as caught:
        read_history(boxes, "box1", "m")
    for part in ("box1: move m", f"remove {folder} on box1", "fleetctl status", "not undone"):
        assert part in str(caught.value)


def test_a_move_whose_folder_is_gone_is_named_too(box: Path) -> None:
    boxes: Any = {"box1": SimpleNamespace(call=lambda op, move: journal.journal_read(CALL, move))}
    with pytest.raises(UnfinishedError, match="/var/lib/fleetctl/moves/m"):
        read_history(boxes, "box1", "m")
