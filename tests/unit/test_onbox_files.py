"""Files on a box: whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetctl.onbox.files import digest, read, remove, write
from fleetctl.onbox.main import Call, CancelledError, OpError


@pytest.fixture
def call() -> Call:
    return Call(1, lambda message: None)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_files_are_written_with_their_modes_and_parents(call: Call, tmp_path: Path) -> None:
    unit, secret = tmp_path / "etc/systemd/a b.service", tmp_path / "var/secrets/key"
    done = write(
        call,
        [
            {"path": str(unit), "content": "ExecStart=/bin/echo ü€ %%\n", "mode": 0o644},
            {"path": str(secret), "content": "s", "mode": 0o600, "private": True},
        ],
    )
    assert done == {"changed": [str(unit), str(secret)]}
    assert unit.read_text() == "ExecStart=/bin/echo ü€ %%\n"
    assert (mode(unit), mode(secret)) == (0o644, 0o600)
    assert (mode(unit.parent), mode(secret.parent)) == (0o755, 0o700)


def test_a_file_that_is_already_so_is_left_alone(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "file"
    wanted = [{"path": str(path), "content": "x\n", "mode": 0o640}]
    assert write(call, wanted)["changed"] == [str(path)]
    before = path.stat()
    assert write(call, wanted) == {"changed": []}
    assert path.stat() == before


@pytest.mark.parametrize("change", [{"content": "y\n"}, {"mode": 0o600}, {"content": "longer\n"}])
def test_any_difference_is_written(call: Call, tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "file"
    wanted = {"path": str(path), "content": "x\n", "mode": 0o640}
    write(call, [wanted])
    assert write(call, [{**wanted, **change}])["changed"] == [str(path)]
    assert names(tmp_path) == ["file"]


def test_bytes_that_are_no_text_go_both_ways(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = bytes(range(256))
    write(call, [{"path": str(path), "content_b64": base64.b64encode(data).decode(), "mode": 0o644}])
    assert path.read_bytes() == data
    assert read(call, str(path)) == {"content_b64": base64.b64encode(data).decode(), "mode": 0o644}


def test_a_link_is_replaced_and_not_followed(call: Call, tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("x\n")
    link.symlink_to(target)
    assert write(call, [{"path": str(link), "content": "x\n", "mode": 0o644}])["changed"] == [str(link)]
    assert not link.is_symlink()
    assert target.read_text() == "x\n"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=False)
    if mounted.returncode != 0:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_changes_nothing_at_all(call: Call, tmp_path: Path, small: Path) -> None:
    first, second = tmp_path / "first", small / "new/second"
    first.write_text("old")
    files = [
        {"path": str(first), "content": "new", "mode": 0o644},
        {"path": str(small / "new/fits"), "content": "x", "mode": 0o644},
        {"path": str(second), "content": "x" * 200_000, "mode": 0o644},
    ]
    with pytest.raises(OpError, match=rf"no space left on {small} \({second} needs 200000 bytes, \d+ free\)"):
        write(call, files)
    assert first.read_text() == "old"
    assert names(tmp_path) == ["first", "small"]


def test_a_wrong_path_changes_nothing_at_all(call: Call, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    good = {"path": str(tmp_path / "new/good"), "content": "x", "mode": 0o644}
    for bad, message in [
        (tmp_path / "folder", "is a folder"),
        (tmp_path / "file/below", "File exists|Not a directory"),
        ("relative", "not an absolute path"),
    ]:
        with pytest.raises(OpError, match=message):
            write(call, [good, {"path": str(bad), "content": "x", "mode": 0o644}])
        assert names(tmp_path) == ["file", "folder"]


def test_an_unknown_owner_is_named(call: Call, tmp_path: Path) -> None:
    for owner, message in [("nosuch", "no user nosuch"), ("root:nosuch", "no group nosuch")]:
        with pytest.raises(OpError, match=message):
            write(call, [{"path": str(tmp_path / "f"), "content": "", "mode": 0o600, "owner": owner}])


@pytest.mark.skipif(os.geteuid() != 0, reason="giving files away needs root")
def test_an_owner_is_set_and_compared(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "file"
    wanted = {"path": str(path), "content": "x", "mode": 0o640}
    write(call, [wanted])
    assert write(call, [{**wanted, "owner": "root:daemon"}])["changed"] == [str(path)]
    assert path.group() == "daemon"
    assert write(call, [{**wanted, "owner": "root:daemon"}])["changed"] == []


def test_a_cancelled_write_changes_nothing(call: Call, tmp_path: Path) -> None:
    call.cancelled.set()
    with pytest.raises(CancelledError):
        write(call, [{"path": str(tmp_path / "new/f"), "content": "x", "mode": 0o644}])
    assert names(tmp_path) == []


def test_missing_files_are_nothing_to_read_and_nothing_to_remove(call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    missing = [str(tmp_path / "no"), str(tmp_path / "no/such"), str(tmp_path / "file/below")]
    assert [read(call, path) for path in missing] == [None, None, None]
    assert digest(call, missing) == dict.fromkeys(missing)
    assert remove(call, missing) == {"removed": []}


def test_a_digest_is_the_sha256_of_the_content(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc" * 1_000_000)
    assert digest(call, [str(path)]) == {str(path): hashlib.sha256(path.read_bytes()).hexdigest()}
    with pytest.raises(OpError, match="cannot read"):
        digest(call, [str(tmp_path)])


def test_files_links_and_empty_folders_are_removed_and_full_ones_are_not(call: Call, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    (tmp_path / "b").symlink_to("/nonexistent")
    (tmp_path / "c").mkdir()
    (tmp_path / "d/e").mkdir(parents=True)
    paths = [str(tmp_path / name) for name in "abc"]
    assert remove(call, paths) == {"removed": paths}
    with pytest.raises(OpError, match=r"cannot remove .*/d: Directory not empty"):
        remove(call, [str(tmp_path / "d")])
