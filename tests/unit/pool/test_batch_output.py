"""The files that a job ends in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleetctl.errors import SpecError
from fleetctl.pool.batch.output import Spool, paths, write
from fleetctl.pool.batch.results import Answer

NAMES = {1: "a", 3: "b", 4: "c", 9: "d"}


def answer(line: int, status: int = 200, body: bytes = b'{"ok":\n true}') -> Answer:
    return Answer(line, status, "application/json", body, "spark1")


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_answers_are_in_the_order_of_the_input_and_errors_beside_them(tmp_path: Path) -> None:
    where = paths("in.jsonl", tmp_path / "out.jsonl")
    with Spool(tmp_path, "b-1", NAMES) as spool:
        assert all(spool.keep(answer(line)) for line in (9, 1))
        assert spool.keep(answer(4, 400, b'{"error": {"message": "no"}}')) and spool.keep(answer(3, body=b"text\xff"))
        assert not spool.keep(answer(9, 500)) and not spool.keep(answer(2))
        assert spool.missing == []
        done = write(spool, where, cancelled=False)
    assert (done.answered, done.failed) == (3, 1)
    assert [row["custom_id"] for row in rows(tmp_path / "out.jsonl")] == ["a", "b", "d"]
    assert rows(tmp_path / "out.jsonl")[0] == {
        "id": "b-1.1",
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "b-1.1", "body": {"ok": True}},
        "error": None,
    }
    assert rows(tmp_path / "out.jsonl")[1]["response"]["body"] == "text\N{REPLACEMENT CHARACTER}"
    assert rows(tmp_path / "out.errors.jsonl")[0]["response"]["body"] == {"error": {"message": "no"}}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.errors.jsonl", "out.jsonl"]


def test_without_errors_there_is_no_file_for_them_and_one_from_before_is_emptied(tmp_path: Path) -> None:
    where = paths("in.jsonl", tmp_path / "out.jsonl")
    for before in (False, True):
        if before:
            where[1].write_text("old\n")
        with Spool(tmp_path, "b-1", {1: "a"}) as spool:
            spool.keep(answer(1))
            write(spool, where, cancelled=False)
        assert where[1].exists() is before
    assert where[1].read_text() == ""


def test_what_was_cancelled_is_among_the_errors_as_openai_has_it(tmp_path: Path) -> None:
    with Spool(tmp_path, "b-1", NAMES) as spool:
        spool.keep(answer(3))
        spool.keep(answer(4, 500))
        done = write(spool, paths("in.jsonl", tmp_path / "out.jsonl"), cancelled=True)
    assert (done.answered, done.failed) == (1, 3)
    found = rows(tmp_path / "out.errors.jsonl")
    assert [row["custom_id"] for row in found] == ["a", "c", "d"]
    assert found[0]["response"] is None and found[0]["error"]["code"] == "batch_cancelled"


def test_the_output_is_as_it_was_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = paths("in.jsonl", tmp_path / "out.jsonl")
    where[0].write_text("before\n")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with Spool(tmp_path, "b-1", {1: "a"}) as spool, pytest.raises(OSError, match="No space left"):
        spool.keep(answer(1))
        write(spool, where, cancelled=False)
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"] and where[0].read_text() == "before\n"


def test_files_are_named_after_the_input(tmp_path: Path) -> None:
    assert [path.name for path in paths("tasks.jsonl", None)] == ["tasks.output.jsonl", "tasks.errors.jsonl"]
    assert [path.name for path in paths("x", Path("a.json"))] == ["a.json", "a.errors.jsonl"]
    for out, said in ((tmp_path, "is a folder"), (tmp_path / "no/a.jsonl", "is no folder to write a.jsonl in")):
        with pytest.raises(SpecError, match=said):
            paths("x", out)
