"""Scores on the box that keeps the journal: the last of each build counts, and the file does not grow for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleetctl.onbox import scores
from fleetctl.onbox.main import Call, OpError

CALL = Call(1, lambda message: None)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(scores, "FILE", str(tmp_path / "scores.jsonl"))
    return tmp_path / "scores.jsonl"


def record(build: str, score: float, at: float = 1.0) -> dict[str, Any]:
    return {"suite": "tools", "build": build, "score": score, "at": at}


def test_the_last_score_of_a_build_counts(file: Path) -> None:
    for build, points in (("x", 70), ("y", 80), ("x", 75)):
        scores.score_note(CALL, record(build, points))
    assert {key: told["score"] for key, told in scores.scores().items()} == {"tools x": 75, "tools y": 80}


def test_a_damaged_line_says_nothing(file: Path) -> None:
    scores.score_note(CALL, record("x", 70))
    file.write_text(file.read_text() + '{"suite": "tools", "build": "x", "sco\n[]\n{"suite": "tools"}\n')
    scores.score_note(CALL, record("y", 80))
    assert set(scores.scores()) == {"tools x", "tools y"}


def test_without_a_file_no_score_is_known(file: Path) -> None:
    assert scores.scores() == {}


def test_the_file_keeps_the_newer_half_when_it_is_full(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "MOST", 4096)
    for number in range(200):
        scores.score_note(CALL, record(f"b{number}", 50))
    assert file.stat().st_size < 3 * 4096
    assert "tools b199" in scores.scores() and "tools b0" not in scores.scores()


def test_a_place_that_cannot_be_written_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "FILE", "/proc/scores.jsonl")
    with pytest.raises(OpError, match=r"/proc/scores\.jsonl cannot be written"):
        scores.score_note(CALL, record("x", 1))
