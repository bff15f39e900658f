"""Weights from one box to another, part by part: whole, after a cut, with a wrong byte, and with strangers about."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
from two_boxes import HERE, KEY, PART, bring, call, flip, goal_from, model_in, same_files, send, short

from fleetctl.onbox import arrival, manifests
from fleetctl.onbox.arrival import weights_begin, weights_room
from fleetctl.onbox.arrived import weights_arrive
from fleetctl.onbox.main import CancelledError, OpError
from fleetctl.onbox.partsums import data_end
from fleetctl.onbox.partswire import RefusedError, greet
from fleetctl.onbox.weightsmove import weights_goal
from fleetctl.onbox.weightsproof import weights_look, weights_prove, weights_verify

SIZE = 2 * PART + 4321


@pytest.fixture(autouse=True)
def _kept_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "FOLDER", str(tmp_path / "manifests"))


def places(tmp_path: Path, *sizes: int) -> tuple[Path, dict[str, Any], Path, dict[str, Any]]:
    one, two = model_in(tmp_path / "one" / "m", *sizes), tmp_path / "two" / "m"
    two.parent.mkdir()
    return one, {"folder": str(one)}, two, {"folder": str(two)}


def test_a_model_arrives_whole_with_its_modes_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    one, source, two, target = places(tmp_path, SIZE, 0, 77)
    (one / "config.json").chmod(0o640)
    told = bring(source, target)
    assert told["received"] == told["sent"] == sum(path.stat().st_size for path in one.iterdir())
    assert same_files(one, two) and [path.name for path in two.parent.iterdir()] == ["m"]
    assert stat.S_IMODE((two / "config.json").stat().st_mode) == 0o640
    here, there = weights_look(call(), [source, target])
    assert here["state"] == there["state"] == "proven" and here["tree"] == there["tree"]
    assert there["by"] == "push from here"
    assert bring(source, target)["received"] == 0, "what is there is not sent again"


def test_after_a_cut_no_more_than_one_part_comes_again(tmp_path: Path) -> None:
    one, source, two, target = places(tmp_path, 3 * PART, PART)
    goal = goal_from(source)
    begun = weights_begin(call(), target, goal)
    came = 0

    def hear(event: dict[str, Any]) -> None:
        nonlocal came
        came = event.get("bytes", came)
        if came > PART + PART // 3:
            receiving.cancelled.set()

    receiving = call(hear)
    with pytest.raises(CancelledError):
        send(source, target, goal, calls=receiving, limit=30e6)
    assert not two.exists(), "nothing is at the place before all of it is proven"
    again = weights_begin(call(), target, goal)
    assert 0 < again["bytes"] <= begun["bytes"] - came + PART
    assert weights_look(call(), [target])[0]["staged"] > PART
    assert send(source, target, goal)["received"] == again["bytes"]
    weights_arrive(call(), target, by="push", **short(goal))
    assert same_files(one, two)


def test_what_a_cut_left_is_not_trusted(tmp_path: Path) -> None:
    one, source, two, target = places(tmp_path, 2 * PART)
    goal = goal_from(source)
    weights_begin(call(), target, goal)
    send(source, target, goal)
    (staged,) = (tmp_path / "two").glob(".m*/files/*.safetensors")
    flip(staged, 5)
    assert weights_begin(call(), target, goal)["parts"] == 1
    send(source, target, goal)
    weights_arrive(call(), target, by="push", **short(goal))
    assert same_files(one, two)


def test_one_wrong_byte_is_found_and_its_part_alone_comes_again(tmp_path: Path) -> None:
    one, source, two, target = places(tmp_path, SIZE, 1000)
    bring(source, target)
    name = "model-00001.safetensors"
    flip(two / name, PART + 9)
    assert weights_verify(call(), target)["state"] == "proven", "size and time do not tell"
    told = weights_verify(call(), target, full=True)
    assert (told["state"], told["wrong"]) == ("differs", {name: [1]})
    assert weights_look(call(), [target])[0]["state"] == "touched", "it counts as proven no more"
    with pytest.raises(OpError, match=r"not what was recorded .*differs in 1 part\(s\) of 16 MiB \(1\)"):
        weights_prove(call(), target)
    assert bring(source, target)["received"] == PART
    assert weights_verify(call(), target, full=True)["state"] == "proven" and same_files(one, two)


def test_files_that_were_touched_are_read_again_and_are_proven_when_their_bytes_are_the_same(tmp_path: Path) -> None:
    one, source, _, _ = places(tmp_path, 1000)
    weights_prove(call(), source)
    os.utime(one / "config.json")
    (one / "README.md").write_text("new")
    assert weights_look(call(), [source])[0]["touched"] == ["README.md", "config.json"]
    assert weights_prove(call(), source)["read"]
    assert weights_look(call(), [source])[0]["state"] == "proven"
    (one / "config.json").write_text("[]")
    assert weights_verify(call(), source)["state"] == "differs"
    assert weights_verify(call(), source, accept=True)["state"] == "proven"


def test_weights_that_are_missing_or_cut_short_are_told_so(tmp_path: Path) -> None:
    one, source, _, target = places(tmp_path, 1000)
    assert weights_look(call(), [target])[0]["state"] == "missing"
    with pytest.raises(OpError, match="are not there"):
        weights_prove(call(), target)
    os.truncate(one / "model-00001.safetensors", 500)
    assert weights_look(call(), [source])[0]["state"] == "broken"
    with pytest.raises(OpError, match=r"not complete: .* has 500 bytes of"):
        weights_prove(call(), source)


def test_a_box_whose_files_changed_after_they_were_proven_sends_nothing_that_is_taken(tmp_path: Path) -> None:
    one, source, two, target = places(tmp_path, 1000)
    goal = goal_from(source)
    weights_begin(call(), target, goal)
    flip(one / "model-00001.safetensors", 500)
    with pytest.raises(OpError, match=r"part 0 of model-00001\.safetensors arrives other than its checksum says"):
        send(source, target, goal)
    assert not two.exists()
    os.utime(one / "model-00001.safetensors")
    with pytest.raises(OpError, match="not proven"):
        weights_goal(call(), source)


def test_a_disk_without_room_is_told_before_anything_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, source, _, target = places(tmp_path, PART)
    goal = goal_from(source)
    assert weights_room(call(), target, goal)["enough"]
    monkeypatch.setattr(arrival, "room_of", lambda path: (PART, 1))
    told = weights_room(call(), target, goal)
    assert not told["enough"] and told["need"] > PART
    with pytest.raises(OpError, match="bytes free of"):
        weights_begin(call(), target, goal)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", ".hidden", "a//b", "a/../b", ""])
def test_a_file_that_would_leave_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    _, source, _, target = places(tmp_path, 10)
    goal = goal_from(source)
    goal["files"][name] = goal["files"]["config.json"]
    with pytest.raises(OpError, match="is no name of a file"):
        weights_begin(call(), target, goal)


def test_who_does_not_know_the_key_or_is_not_the_peer_gets_nothing(tmp_path: Path) -> None:
    _, source, _, target = places(tmp_path, 10)
    goal = goal_from(source)
    weights_begin(call(), target, goal)
    with pytest.raises(OpError, match="did not prove that it is the box"):
        send(source, target, goal, key="another key")
    with pytest.raises(OpError, match="did not prove that it is the box"):
        send(source, target, goal, peer="127.0.0.9")
    assert send(source, target, goal)["refused"] == []


def test_neither_end_shows_the_key_to_one_that_does_not_have_it() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"0" * 32 + b"\n" + b"f" * 64 + b"\n")
        with pytest.raises(RefusedError):
            greet(ours, KEY, listens=True)
        assert KEY.encode() not in theirs.recv(1000)


def test_a_single_file_is_weights_too(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "one" / "m.gguf").write_bytes(b"GGUF" + os.urandom(PART))
    (tmp_path / "two" / "other").write_text("a neighbour")
    bring({"folder": str(tmp_path / "one/m.gguf")}, {"folder": str(tmp_path / "two/m.gguf")})
    assert (tmp_path / "two/m.gguf").read_bytes() == (tmp_path / "one/m.gguf").read_bytes()
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == ["m.gguf", "other"]


def test_holes_end_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "holes"
    with path.open("wb") as file:
        file.truncate(4 * 2**20)
        file.seek(2**20)
        file.write(os.urandom(2**20))
    with path.open("rb") as file:
        assert data_end(file.fileno(), 0, 2**20)[1] is False
        assert data_end(file.fileno(), 2**20, 2 * 2**20) == (2 * 2**20, True)
        assert data_end(file.fileno(), 2**20, 3 * 2**20) == (2 * 2**20, False)
    assert HERE


@pytest.mark.parametrize("made", ["a link", "somebody's folder"])
def test_what_somebody_put_where_weights_arrive_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    _, source, target, asked = places(tmp_path, PART + 5)
    goal = goal_from(source)
    aside = tmp_path / "aside"
    (aside / "files").mkdir(parents=True)
    (aside / "files" / "theirs").write_text("theirs")
    staging = target.parent / f".{target.name}.fleetctl-arriving"
    if made == "a link":
        staging.symlink_to(aside)
    else:
        aside.rename(staging)
        aside = staging
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(OpError, match="is not fleetctl's"):
        weights_begin(call(), asked, goal)
    with pytest.raises(OpError):
        weights_arrive(call(), asked, by="push", **short(goal))
    assert (aside / "files" / "theirs").read_text() == "theirs"


def test_a_goal_that_was_exchanged_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    _, source, target, asked = places(tmp_path, PART + 5)
    goal = goal_from(source)
    weights_begin(call(), asked, goal)
    staging = target.parent / f".{target.name}.fleetctl-arriving"
    forged = dict(goal, files={"../../out": next(iter(goal["files"].values()))}, there=[], right=[])
    arrival.dump(str(staging / "goal.json"), forged)
    arrival.dump(str(staging / "jobs.json"), [])
    with pytest.raises(OpError, match="no name of a file"):
        weights_arrive(call(), asked, by="push", **short(goal))


def test_a_link_to_a_file_of_the_system_is_not_sent_with_a_model(tmp_path: Path) -> None:
    folder, source, _, _ = places(tmp_path, 5)
    (folder / "notes.txt").symlink_to("/etc/passwd")
    weights_prove(call(), source)
    with pytest.raises(OpError, match="is a link to /etc/passwd"):
        weights_goal(call(), source)
