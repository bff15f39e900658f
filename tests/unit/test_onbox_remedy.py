"""A repair can be repeated, and taken back wherever it was cut off."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetctl.onbox import remedy
from fleetctl.onbox.main import Call, OpError

CALL = Call(1, lambda message: None)


@pytest.mark.parametrize(
    ("done", "ran", "left"),
    [
        ([], ["undo"], "file"),
        (["do"], ["undo"], "file"),
        (["do"], ["do"], "file.old"),
        (["do", "do"], ["undo"], "file"),
    ],
)
def test_a_file_that_was_moved_away_is_moved_once_and_comes_back(
    done: list[str], ran: list[str], left: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remedy, "require_claim", lambda: None)
    file = tmp_path / "file"
    file.write_text("as it was")
    commands = {"do": ["mv", str(file), f"{file}.old"], "undo": ["mv", f"{file}.old", str(file)]}
    for word in [*done, *ran]:
        remedy.remedy(CALL, [commands[word]])
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {left: "as it was"}


def test_the_first_command_that_fails_is_named_with_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remedy, "require_claim", lambda: None)
    with pytest.raises(OpError, match=r"ls /nowhere: .*No such file"):
        remedy.remedy(CALL, [["true"], ["ls", "/nowhere"], ["touch", "/nowhere/x"]])
