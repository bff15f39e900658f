"""Adapters on a box: in their place only whole, in the index only what is there, and no name is a path."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetctl.checkpoint.adapter import Local, read_adapter
from fleetctl.lab.tinylora import make_tiny_lora
from fleetctl.onbox import adapters as store
from fleetctl.onbox.main import Call, OpError

MOVE = "20260101T000000Z-abcd"


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Call]:
    """The program on a box whose folders are below a temporary one, and that holds the fleet."""
    var = tmp_path / "var"
    var.mkdir()
    names = {
        "INDEX": "/index.json",
        "NAMES": "/names",
        "GATEWAY_NAMES": "/.gateway/names",
        "SENT": "/.sent",
        "FOLDER": "",
    }
    places = {name: f"loras{path}" for name, path in names.items()} | {"MOVES": "moves"}
    for name, path in places.items():
        monkeypatch.setattr(store, name, str(var / path))
    monkeypatch.setattr(store, "require_claim", lambda: None)
    yield Call(1, lambda event: None)


def files_of(local: Local) -> dict[str, Any]:
    return {name: list(told) for name, told in local.files.items()}


def send(call: Call, local: Local, *, spoil: bool = False, piece: int = 1000) -> dict[str, Any]:
    """Send an adapter in pieces, as the steps do; returns how far it was before."""
    files = files_of(local)
    told = store.adapter_sent(call, "m", "a", files)
    for name in files:
        data = bytearray((local.folder / name).read_bytes())
        if spoil:
            data[-1] ^= 1
        for offset in range(told["sent"].get(name, 0), len(data), piece):
            text = base64.b64encode(bytes(data[offset : offset + piece])).decode()
            store.adapter_put(call, local.digest, name, offset, text)
    return told


def entry(local: Local) -> dict[str, Any]:
    return {"digest": local.digest, "files": files_of(local), "rank": 8, "by": "me", "at": 1.0}


def test_it_is_in_its_place_once_every_byte_has_come(call: Call, tmp_path: Path) -> None:
    local = read_adapter(make_tiny_lora(tmp_path / "a"))
    send(call, local)
    folder = Path(store.adapter_seal(call, "m", "a", files_of(local))["folder"])
    assert {one.name: one.read_bytes() for one in folder.iterdir()} == {
        name: (local.folder / name).read_bytes() for name in local.files
    }
    assert store.adapter_sent(call, "m", "a", files_of(local))["there"]
    store.adapters_note(call, 1, {"m": {"a": entry(local)}})
    assert (store.look()["serial"], store.look()["broken"]) == (1, {})
    assert store.write_names(call, [], []) == {"a": "m"} and Path(store.NAMES).read_text() == "a m\n"
    shown = Path(store.GATEWAY_NAMES)
    assert (shown.read_text(), shown.stat().st_mode & 0o777, shown.parent.stat().st_mode & 0o777) == (
        "a m\n", 0o644, 0o755,
    )  # fmt: skip


def test_what_came_before_a_cut_is_not_sent_again_and_another_byte_is_noticed(call: Call, tmp_path: Path) -> None:
    local = read_adapter(make_tiny_lora(tmp_path / "a"))
    first = base64.b64encode((local.folder / "adapter_model.safetensors").read_bytes()[:700]).decode()
    store.adapter_put(call, local.digest, "adapter_model.safetensors", 0, first)
    assert store.adapter_sent(call, "m", "a", files_of(local))["sent"]["adapter_model.safetensors"] == 700
    send(call, local, spoil=True)
    with pytest.raises(OpError, match=r"did not come whole: \S+ is not what was sent"):
        store.adapter_seal(call, "m", "a", files_of(local))
    assert not Path(store.SENT, local.digest).exists() and not Path(store.FOLDER, "m").exists()
    with pytest.raises(OpError, match="is not whole here"):
        store.adapters_note(call, 1, {"m": {"a": entry(local)}})


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc", "a\0", "-x", ".x", "x" * 65, "ä", 7, None])
def test_no_name_becomes_a_path(call: Call, tmp_path: Path, name: Any) -> None:
    local = read_adapter(make_tiny_lora(tmp_path / "a"))
    files, digest = files_of(local), local.digest
    for ask in (
        lambda: store.adapter_sent(call, "m", name, files),
        lambda: store.adapter_sent(call, name, "a", files),
        lambda: store.adapter_seal(call, name, "a", files),
        lambda: store.adapter_put(call, name, "adapter_config.json", 0, ""),
        lambda: store.adapter_put(call, digest, name, 0, ""),
        lambda: store.adapter_read(call, "m", "a", name, "adapter_config.json", 0),
        lambda: store.adapter_read(call, "m", "a", digest, name, 0),
        lambda: store.adapters_note(call, 1, {"m": {name: entry(local)}}),
        lambda: store.adapters_drop(call, name, [{"model": "m", "name": "a", "digest": digest}]),
        lambda: store.adapters_drop(call, MOVE, [{"model": "m", "name": name, "digest": digest}]),
        lambda: store.write_names(call, [], [{"model": "m", "name": name}]),
    ):
        with pytest.raises(OpError):
            ask()
    assert not (tmp_path / "var" / "moves").exists() and not list((tmp_path / "var").glob("**/*.safetensors"))


def test_what_was_dropped_can_come_back_and_what_counts_is_not_dropped(call: Call, tmp_path: Path) -> None:
    local = read_adapter(make_tiny_lora(tmp_path / "a"))
    send(call, local)
    folder = Path(store.adapter_seal(call, "m", "a", files_of(local))["folder"])
    store.adapters_note(call, 1, {"m": {"a": entry(local)}})
    items = [{"model": "m", "name": "a", "digest": local.digest}]
    with pytest.raises(OpError, match="in the index and stays"):
        store.adapters_drop(call, MOVE, items)
    store.adapters_note(call, 2, {})
    store.adapters_drop(call, MOVE, items)
    assert not folder.exists()
    store.adapters_restore(call, MOVE, items)
    assert folder.is_dir()


def test_a_damaged_index_is_told_and_stops_nothing(call: Call) -> None:
    Path(store.FOLDER).mkdir()
    for text in ("{", "[]", '{"serial": 1, "adapters": 7}', json.dumps({"serial": 1, "adapters": {"m": {"a": 7}}})):
        Path(store.INDEX).write_text(text)
        assert store.look()["broken"], text


def test_one_changed_byte_is_found(call: Call, tmp_path: Path) -> None:
    local = read_adapter(make_tiny_lora(tmp_path / "a"))
    send(call, local)
    folder = Path(store.adapter_seal(call, "m", "a", files_of(local))["folder"])
    store.adapters_note(call, 1, {"m": {"a": entry(local)}})
    assert store.changed(call) == {}
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    assert store.changed(call) == {"m/a": "adapter_model.safetensors"}
    assert store.look()["broken"] == {}, "its size is right"


def test_pieces_that_nobody_announced_do_not_fill_the_disk(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SPARE", 1 << 62)
    with pytest.raises(OpError, match="no room in"):
        store.adapter_put(call, "0123456789abcdef", store.FILES[1], 0, base64.b64encode(b"x").decode())
