"""A program is asked once for each build which flags it knows; a failure is told as that, and not kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleetctl.onbox import flags
from fleetctl.onbox.main import Call, OpError


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(flags, "KEPT", str(tmp_path / "kept"))
    monkeypatch.setattr(flags, "ROOM", 0)
    return write(tmp_path / "engine", 'echo "$@" >> "$0.asked"\necho "  --flag X"\n')


def write(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n[ \"$1\" = --version ] && echo 'version: 11434 (abc)' && exit 0\n{text}")
    path.chmod(0o755)
    return path


def ask(program: Path, **more: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "argv": [str(program), "--help"],
        "binary": str(program),
        "image": None,
        "packages": [],
        "version": [str(program), "--version"],
        "env": {},
        "limit": 20,
    }
    return flags.program_help(Call(1, lambda message: None), **{**values, **more})


def asked(program: Path) -> int:
    return len(Path(f"{program}.asked").read_text().splitlines())


def test_the_same_build_is_asked_once_and_another_one_anew(program: Path) -> None:
    told = ask(program)
    assert told == {"text": "  --flag X\n", "version": "11434"}
    assert ask(program) == told
    assert asked(program) == 1
    write(program, 'echo "$@" >> "$0.asked"\necho "  --other"\n')
    assert ask(program)["text"] == "  --other\n"
    assert asked(program) == 2


def test_one_that_fails_or_is_not_there_says_why_and_is_asked_again(program: Path) -> None:
    write(program, "echo 'TypeError: no such thing' >&2\nexit 1\n")
    why = ask(program)["why"]
    assert "ended with status 1: TypeError: no such thing" in why
    write(program, "sleep 30\n")
    assert "did not end within 0.2 s" in ask(program, limit=0.2)["why"]
    assert ask(program, binary=str(program) + ".gone") == {"why": "it is not there"}


def test_it_is_not_asked_while_memory_is_short(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flags, "ROOM", 1 << 60)
    assert "of memory is available" in ask(program)["why"]
    assert not Path(f"{program}.asked").exists()


def test_no_more_answers_are_kept_than_a_few(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flags, "MOST_KEPT", 3)
    for number in range(6):
        ask(program, env={"A": str(number)})
    assert len(list(Path(flags.KEPT).iterdir())) == 3


def test_an_answer_that_cannot_be_kept_is_told_all_the_same(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flags, "KEPT", "/proc/self/none")
    assert ask(program)["text"] == "  --flag X\n"


def test_an_image_whose_engine_is_gone_is_not_asked(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise OpError("no program docker here")

    monkeypatch.setattr(flags, "image_build", gone)
    assert ask(program, image=["docker", "x"]) == {"why": "no program docker here"}
