"""The journal on a box takes a record once, however often a client that lost its connection sends it."""

import json
from pathlib import Path

import pytest

from fleetctl.onbox import journal
from fleetctl.onbox.main import Call

CALL = Call(1, lambda message: None)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(journal, "MOVES", str(tmp_path))
    monkeypatch.setattr(journal, "require_claim", lambda: None)
    (tmp_path / "m").mkdir()
    return tmp_path / "m" / "journal.jsonl"


def records(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]


def test_a_record_that_is_sent_again_is_there_once_also_after_others(file: Path) -> None:
    first, second = {"type": "begin", "id": "a"}, {"type": "done", "id": "b"}
    for record in (first, second, first, second):
        journal.journal_append(CALL, "m", dict(record))
    assert records(file) == [first, second]


def test_a_last_line_that_was_cut_off_swallows_nothing(file: Path) -> None:
    journal.journal_append(CALL, "m", {"type": "begin", "id": "a"})
    with file.open("a") as torn:
        torn.write('{"type": "do')
    journal.journal_append(CALL, "m", {"type": "done", "id": "c"})
    assert [record["id"] for record in records(file)] == ["a", "c"]


def test_only_the_end_of_a_long_journal_is_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "TAIL", 200)
    for number in range(50):
        journal.journal_append(CALL, "m", {"type": "begin", "id": str(number)})
    journal.journal_append(CALL, "m", {"type": "begin", "id": "49"})
    assert [record["id"] for record in records(file)] == [str(number) for number in range(50)]


@pytest.mark.parametrize(("result", "told"), [("done", ["m0", "m3", "m4"]), ("undone", ["m3", "m4"])])
def test_the_last_move_to_another_generation_is_told_behind_however_many_that_stayed(
    file: Path, monkeypatch: pytest.MonkeyPatch, result: str, told: list[str]
) -> None:
    monkeypatch.setattr(journal, "names", lambda: [f"m{number}" for number in range(5)])
    for number in range(5):
        folder = file.parent.parent / f"m{number}"
        folder.mkdir()
        meta = {"operation": "lora push", "from_generation": 2, "generation": 2 if number else 3, "who": "ann"}
        (folder / "meta.json").write_text(json.dumps({**meta, "from_layout": "a", "to_layout": "a"}))
        (folder / "plan.json").write_text("{}")
        end = {"type": "end", "result": "done" if number else result}
        (folder / "journal.jsonl").write_text('{"type": "plan"}\n' + json.dumps(end) + "\n")
    assert [move["move"] for move in journal.moves(last=2)] == told
