"""What operators wish of models outlasts the worker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleetctl.pool.wishes import Wished, WishesError, read, write

WISHES = {"a": Wished(pinned=True), "b": Wished(False, "evict"), "org/c": Wished(wish="load")}


def test_what_is_written_is_read_again_and_nobody_else_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "pool" / "wishes.json"
    assert read(path) == {}
    write(path, {**WISHES, "d": Wished()})
    assert read(path) == WISHES
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert json.loads(path.read_text())["b"] == {"pinned": False, "wish": "evict"}
    write(path, {})
    assert read(path) == {}
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"a": 3}', '{"a": {"pinned": "no"}}', '{"a": {"wish": "pin"}}'])
def test_a_damaged_file_is_said_and_how_to_go_on(text: str, tmp_path: Path) -> None:
    path = tmp_path / "wishes.json"
    path.write_text(text)
    with pytest.raises(WishesError, match=r"is damaged.*\n.*remove it"):
        read(path)


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WishesError, match="cannot be written"):
        write(tmp_path / "file" / "wishes.json", WISHES)
