"""Gates that failed, as the box with the journal keeps them: for root alone, without secrets."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from fleetctl.onbox import gate_failures
from fleetctl.onbox.main import Call, OpError

CALL = Call(1, lambda message: None)


@pytest.fixture
def moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(gate_failures, "MOVES", str(tmp_path))
    monkeypatch.setattr(gate_failures, "require_claim", lambda: None)
    (tmp_path / "m").mkdir()
    return tmp_path


def failure(text: str = "hello", gate: str = "tools", **more: Any) -> dict[str, Any]:
    exchange = {"request": {"text": text}, "response": {"text": "data: 1\n\ndata: [DONE]\n"}}
    return {"engine": "replicas/qwen@a", "gate": gate, "why": "bad", "at": 1.0, "exchanges": [exchange], **more}


def test_a_failure_is_kept_for_root_alone_and_read_again(moves: Path) -> None:
    path = Path(gate_failures.gate_keep(CALL, "m", failure())["path"])
    assert path == moves / "m/gates/replicas-qwen@a-tools.json"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert gate_failures.gate_failures(CALL, "m") == [{**failure(), "path": str(path)}]


def test_nothing_that_looks_like_a_secret_is_kept(moves: Path) -> None:
    text = 'first line\n"authorization": "Bearer abcdefgh12345"\nand hf_abcdefghijklmnop and password=hunter2xx'
    path = Path(gate_failures.gate_keep(CALL, "m", failure(text))["path"])
    kept = path.read_text()
    assert not [word for word in ("abcdefgh12345", "hf_abcdefghijklmnop", "hunter2xx") if word in kept]
    assert "first line" in kept


def test_a_name_leads_out_of_no_folder_and_a_move_that_is_not_there_is_refused(moves: Path) -> None:
    path = Path(gate_failures.gate_keep(CALL, "m", failure(gate="../../x y"))["path"])
    assert path.parent == moves / "m/gates"
    with pytest.raises(OpError, match="no journal of move n"):
        gate_failures.gate_keep(CALL, "n", failure())


def test_damaged_files_are_left_out_and_the_order_is_that_of_time(moves: Path) -> None:
    gate_failures.gate_keep(CALL, "m", failure(gate="a", at=2.0))
    gate_failures.gate_keep(CALL, "m", failure(gate="b", at=1.0))
    (moves / "m/gates/c.json").write_text("{")
    (moves / "m/gates/d.json").write_text("{}")
    assert [one["gate"] for one in gate_failures.gate_failures(CALL, "m")] == ["b", "a"]
    assert gate_failures.gate_failures(CALL, "none") == []


def test_long_answers_in_one_line_are_cleaned_in_a_moment(moves: Path) -> None:
    began = time.monotonic()
    for text in ('{"token": "' * 20_000, "x" * 256 * 1024, "password " * 25_000, "a:b@" * 60_000, "-u a:" * 50_000):
        gate_failures.gate_keep(CALL, "m", failure(text))
    assert time.monotonic() - began < 60


def test_a_gate_with_a_long_name_is_kept_and_a_time_that_is_none_breaks_no_list(moves: Path) -> None:
    path = Path(gate_failures.gate_keep(CALL, "m", failure(gate="evals/" + "x" * 300 + ".jsonl", at=[]))["path"])
    assert path.parent == moves / "m/gates"
    gate_failures.gate_keep(CALL, "m", failure(gate="b", at="soon"))
    assert len(gate_failures.gate_failures(CALL, "m")) == 2
