"""What setup keeps of a box before it changes it, and what teardown makes of that."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fleetctl.onbox import setup_keys, setup_record, setup_venv
from fleetctl.onbox.main import Call, OpError
from fleetctl.onbox.setup_record import forget, give_all_back, is_so, keep, note, put, records

CALL = Call(1, lambda message: None)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_record, "VAR", str(tmp_path / "var"))
    monkeypatch.setattr(setup_record, "RECORD", str(tmp_path / "var/setup.json"))
    monkeypatch.setattr(setup_record, "KEPT", str(tmp_path / "var/setup"))


def _do(path: Path, content: str) -> dict[str, Any]:
    """Have a file so, as a part does."""
    record: dict[str, Any] = records().get("part", {})
    file = {"path": str(path), "content": content, "mode": 0o640}
    keep(record, file)
    note(CALL, "part", record)
    put(CALL, file)
    assert is_so(file)
    return record


def test_a_file_that_was_not_there_goes_with_the_folders_that_came_for_it(tmp_path: Path) -> None:
    path = tmp_path / "a/b/file"
    assert give_all_back(_do(path, "new")) == []
    assert not (tmp_path / "a").exists()


def test_a_folder_with_something_of_somebody_else_stays(tmp_path: Path) -> None:
    record = _do(tmp_path / "a/b/file", "new")
    (tmp_path / "a/other").write_text("mine")
    assert give_all_back(record) == []
    assert [path.name for path in tmp_path.glob("a/*")] == ["other"]


def test_a_file_that_was_there_comes_back_to_the_time_of_its_last_change(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o604)
    os.utime(path, (1_000_000, 1_000_000))
    before = path.stat()
    _do(path, "one version")
    record = _do(path, "another version")
    assert give_all_back(record) == []
    after = path.stat()
    assert path.read_text() == "old"
    assert (after.st_mode, after.st_mtime_ns, after.st_uid) == (before.st_mode, before.st_mtime_ns, before.st_uid)


@pytest.mark.parametrize("was_there", [True, False])
def test_a_file_that_somebody_changed_since_stays_and_is_told(tmp_path: Path, was_there: bool) -> None:
    path = tmp_path / "file"
    if was_there:
        path.write_text("old")
    record = _do(path, "new")
    path.write_text("new and more")
    (told,) = give_all_back(record)
    assert "was changed since and stays" in told and path.read_text() == "new and more"


def test_what_is_recorded_is_forgotten_with_the_last_part(tmp_path: Path) -> None:
    _do(tmp_path / "file", "new")
    note(CALL, "other", {})
    forget(CALL, "part")
    assert list(records()) == ["other"]
    forget(CALL, "other")
    assert records() == {} and not (tmp_path / "var/setup.json").exists()


def test_content_that_is_not_what_was_named_is_not_put(tmp_path: Path) -> None:
    with pytest.raises(OpError, match="is not what was to be put there"):
        put(CALL, {"path": str(tmp_path / "x"), "mode": 0o755, "sha256": "00", "content": "other"})
    assert not (tmp_path / "x").exists()


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIabc me@desk"


@pytest.fixture
def keys_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / ".ssh" / "authorized_keys"
    monkeypatch.setattr(setup_keys, "file_of", lambda call, user: str(path))
    return path


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


@pytest.mark.parametrize(
    ("before", "there"),
    [
        ("", False),
        ("# ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIabc me\n", False),
        ("ssh-ed25519 AAAAother somebody", False),
        (f"{KEY}\n", True),
        ('from="10.0.0.1",no-pty ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIabc an old comment\n', True),
    ],
)
def test_a_key_is_known_by_itself_and_not_by_its_comment(keys_file: Path, before: str, there: bool) -> None:
    keys_file.parent.mkdir()
    keys_file.write_text(before)
    part = {"part": "key", "user": _user(), "line": KEY}
    assert setup_keys.is_there(CALL, part) is there


def test_of_a_file_that_others_changed_since_the_line_alone_goes(keys_file: Path) -> None:
    keys_file.parent.mkdir()
    keys_file.write_text("ssh-ed25519 AAAAother somebody")
    part = {"part": "key", "user": _user(), "line": KEY}
    record: dict[str, Any] = {}
    setup_keys.add(CALL, part, record)
    assert keys_file.read_text().splitlines() == ["ssh-ed25519 AAAAother somebody", KEY]
    with keys_file.open("a") as file:
        file.write("ssh-rsa AAAAthird more\n")
    (told,) = setup_keys.take_back(CALL, part, record)
    assert "the line with the key was taken out" in told
    assert keys_file.read_text().splitlines() == ["ssh-ed25519 AAAAother somebody", "ssh-rsa AAAAthird more"]


def test_a_key_is_taken_back_to_the_byte(keys_file: Path) -> None:
    keys_file.parent.mkdir()
    keys_file.write_text("ssh-ed25519 AAAAother somebody")
    record: dict[str, Any] = {}
    part = {"part": "key", "user": _user(), "line": KEY}
    setup_keys.add(CALL, part, record)
    assert setup_keys.take_back(CALL, part, record) == []
    assert keys_file.read_text() == "ssh-ed25519 AAAAother somebody"


def test_an_environment_counts_by_the_version_that_pip_recorded(tmp_path: Path) -> None:
    info = tmp_path / "lib/python3.11/site-packages/infinity_emb-0.0.77.dist-info"
    info.mkdir(parents=True)
    assert setup_venv.version_in(str(tmp_path), "infinity-emb") is None, "it is not whole yet"
    (info / "RECORD").write_text("")
    assert setup_venv.version_in(str(tmp_path), "infinity-emb") == "0.0.77"
