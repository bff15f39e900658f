"""What may happen to an upgrade: a kill at any moment, a lost build, a file edited meanwhile, a second operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from moving import BOXES, Moving
from test_lab_rolling import healthy
from test_lab_upgrade import NEW, build, command, with_builds


@pytest.fixture(autouse=True)
def _plain(moving: Moving) -> Any:
    """The boxes have the build, and run the plain file again for whoever comes next."""
    moving.be_in("replicas")
    build(moving, NEW, "0.33.0")
    yield
    moving.cutover("replicas")


def file_of(moving: Moving) -> Path:
    return moving.folder / f"fleet-{moving._files}.yaml"


@pytest.mark.parametrize(
    ("step", "state"),
    [("prepare.", "begin"), ("roll.drain", "done"), ("roll.stop_engine", "begin"), ("roll.start_engine", "begin"),
     ("roll.start_engine.replicas/standin@box2", "done"), ("settle.make_current", "begin")],
)  # fmt: skip
def test_one_that_was_killed_is_seen_and_taken_back_to_what_was(moving: Moving, step: str, state: str) -> None:
    text, before = with_builds(moving, new=NEW), moving.picture()
    move = moving.start("upgrade", "standin", "--to", "new", "--yes", text=text)
    file, begun = file_of(moving), True
    try:
        move.until(step, state)
    except AssertionError:
        begun = False
    move.process.kill()
    move.finish()
    assert begun, sorted({event["step"] for event in move.events if event["type"] == "step"})
    assert file.read_text() == text
    assert (seen := moving.status(text))["exit"] == 8 and seen["unfinished"], seen
    back = moving.run("rollback", "--yes", text=text)
    assert back.rc == 0, back
    moving.unscathed(before, "replicas")


def test_a_build_that_goes_away_after_the_plan_leaves_all_as_it_was(moving: Moving) -> None:
    text, before = with_builds(moving, new=NEW), moving.picture()
    move = moving.start("upgrade", "standin", "--to", "new", "--yes", text=text)
    file = file_of(moving)
    move.until_event("plan")
    for box in BOXES:
        moving.sh(box, f"rm -rf {NEW}")
    ran = move.finish()
    assert (ran.rc, file.read_text()) == (6, text), ran
    moving.unscathed(before, "replicas")


def test_a_file_that_was_edited_meanwhile_is_left_alone_and_the_same_command_writes_it(moving: Moving) -> None:
    text = with_builds(moving, new=NEW)
    move = moving.start("upgrade", "standin", "--to", "new", "--yes", text=text)
    file = file_of(moving)
    move.until_event("plan")
    file.write_text("# edited meanwhile\n" + text)
    ran = move.finish()
    assert (ran.rc, "was changed meanwhile" in ran.said, "run the same command again" in ran.said) == (2, True, True), (
        ran
    )
    assert all(f"{NEW}/bin/vllm" in command(moving, box) for box in BOXES)
    again = moving.run("upgrade", "standin", "--to", "new", "--yes", text=file.read_text())
    assert again.rc == 0 and again.nothing, again
    written = file_of(moving).read_text()
    assert written.startswith("# edited meanwhile\n") and "launch: {build: new}" in written
    assert healthy(moving, written)


def test_a_second_operator_is_told_who_upgrades(moving: Moving) -> None:
    text = with_builds(moving, new=NEW)
    first = moving.start("upgrade", "standin", "--to", "new", "--yes", text=text)
    first.until("roll.")
    second = moving.run("upgrade", "standin", "--to", "new", "--yes", text=text)
    assert second.rc == 4, second
    assert file_of(moving).read_text() == text
    assert first.finish().rc == 0
