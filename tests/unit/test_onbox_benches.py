"""Loads on the box that keeps the journal: in order, damaged lines left out, and not growing for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetctl.onbox import benches
from fleetctl.onbox.main import Call, OpError

CALL = Call(1, lambda message: None)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(benches, "FILE", str(tmp_path / "kept" / "benches.jsonl"))
    return tmp_path / "kept" / "benches.jsonl"


def test_loads_are_told_oldest_first_and_a_damaged_line_says_nothing(file: Path) -> None:
    assert benches.benches(CALL) == []
    benches.bench_note(CALL, {"at": 1})
    file.write_text(file.read_text() + '{"at": 2, "lay\n[]\n')
    benches.bench_note(CALL, {"at": 3})
    assert benches.benches(CALL) == [{"at": 1}, {"at": 3}]


def test_the_file_keeps_the_newer_half_when_it_is_full(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benches, "MOST", 2048)
    for number in range(300):
        benches.bench_note(CALL, {"at": number})
    kept = [record["at"] for record in benches.benches(CALL)]
    assert file.stat().st_size < 3 * 2048 and kept[-1] == 299 and kept == list(range(kept[0], 300))


def test_a_place_that_cannot_be_written_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benches, "FILE", "/proc/benches.jsonl")
    with pytest.raises(OpError, match=r"/proc/benches\.jsonl cannot be written"):
        benches.bench_note(CALL, {})


@pytest.mark.parametrize("torn", ['{"at": 2, "lay', '{"at": ' + "[" * 5000, "\u2028", '{"at": 2'])
def test_a_line_that_was_cut_off_takes_no_later_one_with_it(file: Path, torn: str) -> None:
    benches.bench_note(CALL, {"at": 1})
    file.write_text(file.read_text() + torn)
    benches.bench_note(CALL, {"at": 3})
    assert benches.benches(CALL) == [{"at": 1}, {"at": 3}]
