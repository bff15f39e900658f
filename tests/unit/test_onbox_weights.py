"""Weights on a box: complete or not, as their own headers say."""

from __future__ import annotations

import contextlib
import json
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.onbox import manifests
from fleetctl.onbox.main import Call, CancelledError, OpError
from fleetctl.onbox.weights import expected_size, read_ahead
from fleetctl.onbox.weightsproof import weights_prove


@pytest.fixture(autouse=True)
def _manifests_here(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "FOLDER", str(tmp_path_factory.mktemp("manifests")))


def call() -> Call:
    return Call(1, lambda message: None)


def safetensors(*sizes: int, cut: int = 0) -> bytes:
    tensors: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for number, size in enumerate(sizes):
        tensors[f"w{number}"] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    header = json.dumps(tensors).encode()
    whole = struct.pack("<Q", len(header)) + header + bytes(at)
    return whole[: len(whole) - cut]


def folder(root: Path, **files: bytes) -> str:
    for name, content in files.items():
        (root / name.replace("__", ".")).write_bytes(content)
    return str(root)


def test_whole_weights_are_counted(tmp_path: Path) -> None:
    one, two = safetensors(10, 20), safetensors(5)
    index = json.dumps({"weight_map": {"a": "m1.safetensors", "b": "m2.safetensors"}}).encode()
    path = folder(
        tmp_path, m1__safetensors=one, m2__safetensors=two, config__json=b"{}", model__safetensors__index__json=index
    )
    told = weights_prove(call(), {"folder": path})
    assert (told["files"], told["bytes"]) == (4, len(one) + len(two) + len(index) + 2)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"m__safetensors": safetensors(100, cut=1)}, "bytes of"),
        ({"m__safetensors": safetensors(100, cut=150)}, "was cut short: copy it again"),
        ({"m__safetensors": b""}, "was cut short: copy it again"),
        ({"m__safetensors": b"version https://git-lfs.github.com/spec/v1\n"}, "is not a safetensors file"),
        (
            {"m__safetensors__index__json": b'{"weight_map": {"a": "gone.safetensors"}}'},
            "gone.safetensors is missing",
        ),
        ({"m__safetensors__index__json": b'{"weight_map": '}, "is not an index of weights"),
    ],
)
def test_what_is_missing_or_cut_short_is_named(tmp_path: Path, files: dict[str, bytes], told: str) -> None:
    with pytest.raises(OpError) as failure:
        weights_prove(call(), {"folder": folder(tmp_path, **files)})
    assert told in str(failure.value)


def test_other_formats_are_taken_as_they_are(tmp_path: Path) -> None:
    assert weights_prove(call(), {"folder": folder(tmp_path, m__gguf=b"GGUF")})["bytes"] == 4


@given(st.binary(max_size=200))
def test_no_file_whatever_is_in_it_brings_a_traceback(content: bytes) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        file.write(content)
        file.flush()
        with contextlib.suppress(OpError):
            assert expected_size(file.name) >= 8


def test_reading_ahead_reads_every_weight_file_and_can_be_cancelled(tmp_path: Path) -> None:
    path = folder(tmp_path, a__safetensors=safetensors(1000), b__safetensors=safetensors(2000), c__json=b"{}")
    whole = len(safetensors(1000)) + len(safetensors(2000))
    assert read_ahead(call(), [path], 60)["bytes"] == whole
    gone = call()
    gone.cancelled = threading.Event()
    gone.cancelled.set()
    with pytest.raises(CancelledError):
        read_ahead(gone, [path], 60)
