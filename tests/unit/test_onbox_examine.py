"""What the program on a box gathers for doctor, from folders and lines made by hand."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from fleetctl.onbox import examine_box, examine_memory, fingerprints, nvidia
from fleetctl.onbox.main import Call, CancelledError


def call(events: list[dict[str, Any]] | None = None) -> Call:
    return Call(1, lambda message: (events if events is not None else []).append(message))


def tensor_file(path: Path, payload: bytes, *, missing: int = 0) -> None:
    header = json.dumps({"w": {"dtype": "U8", "shape": [len(payload)], "data_offsets": [0, len(payload)]}}).encode()
    path.write_bytes((struct.pack("<Q", len(header)) + header + payload)[: None if not missing else -missing])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    tensor_file(folder / "model.safetensors", b"a" * 100)
    (folder / "config.json").write_text("{}")
    (folder / "README.md").write_text("read me")
    (folder / ".cache.json").write_text("{}")
    (folder / "original").mkdir()
    return folder


def test_a_fingerprint_has_what_an_engine_reads_and_changes_with_headers_and_words(model: Path) -> None:
    told = fingerprints.fingerprint(call(), str(model))
    assert sorted(told["files"]) == ["config.json", "model.safetensors"] and told["broken"] == []
    tensor_file(model / "model.safetensors", b"b" * 100)
    assert fingerprints.fingerprint(call(), str(model)) == told, "the payload is not read"
    (model / "config.json").write_text("[]")
    changed = fingerprints.fingerprint(call(), str(model))
    assert changed["files"]["config.json"] != told["files"]["config.json"]


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda folder: tensor_file(folder / "model.safetensors", b"a" * 100, missing=40), "bytes of"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), "was cut short"),
        (lambda folder: (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2**63) + b"{}"), "was cut short"),
        (lambda folder: (folder / "model.safetensors").write_bytes(os.urandom(200)), "not a safetensors file"),
        (
            lambda folder: (folder / "model.safetensors.index.json").write_text(
                '{"weight_map": {"w": "x.safetensors"}}'
            ),
            "x.safetensors is missing",
        ),
        (lambda folder: (folder / "model.safetensors.index.json").write_text("{"), "was cut short"),
    ],
    ids=["short", "empty", "huge header", "noise", "missing", "half an index"],
)
def test_weights_that_are_not_whole_are_told_and_never_a_traceback(model: Path, harm: Any, words: str) -> None:
    harm(model)
    assert words in " ".join(fingerprints.fingerprint(call(), str(model))["broken"])


def test_what_is_not_there_is_none_and_a_single_file_is_a_model_too(model: Path, tmp_path: Path) -> None:
    single = tmp_path / "model.gguf"
    single.write_bytes(b"GGUF" + bytes(60))
    told = fingerprints.fingerprints(call(), [str(tmp_path / "none"), str(single)])
    assert told[str(tmp_path / "none")] is None
    assert told[str(single)]["files"] == {"model.gguf": [64, hashlib.sha256(single.read_bytes()).hexdigest()[:16]]}


def test_what_the_hub_fetched_is_found_where_the_engine_looks_for_it(tmp_path: Path) -> None:
    commit = "0123456789abcdef" * 2
    folder = tmp_path / "hub/models--qwen--Qwen3"
    (folder / "snapshots" / commit).mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text(commit)
    (folder / "blobs").mkdir()
    (folder / "blobs/x").write_text("{}")
    (folder / "snapshots" / commit / "config.json").symlink_to("../../blobs/x")

    def ask(revision: str = "", **env: str) -> Any:
        asked = {"id": "qwen/Qwen3", "revision": revision, "env": env}
        return fingerprints.hub_fingerprints(call(), [asked])["qwen/Qwen3"]

    for env in ({"HF_HOME": str(tmp_path)}, {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HOME": "/x"}):
        for revision in ("", "main", commit):
            told = ask(revision, **env)
            assert (told["commit"], list(told["files"])) == (commit, ["config.json"])
    assert ask("v2", HF_HOME=str(tmp_path)) is None and ask("", HF_HOME="/nowhere") is None


def test_checksums_are_over_every_byte_and_a_cancelled_one_ends(model: Path) -> None:
    told = fingerprints.model_checksums(call(), [str(model), "/nowhere"])
    whole = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
    assert told == {str(model): {"config.json": hashlib.sha256(b"{}").hexdigest(), "model.safetensors": whole}}
    stopped = call()
    stopped.cancelled = threading.Event()
    stopped.cancelled.set()
    with pytest.raises(CancelledError):
        fingerprints.model_checksums(stopped, [str(model)])


def test_lines_of_a_journal_are_counted_and_the_newest_told() -> None:
    pattern, most = examine_memory.KINDS["no_memory"]
    found = examine_memory.Found(pattern, most)
    for number in range(198):
        found.take(b"%d.5 spark1 kernel: NVRM: Out of memory [NV_ERR_NO_MEMORY] \xff" % (2000 - number))
    found.take(b"1000.0 spark1 kernel: usb 1-1: new device")
    found.take(b"NV_ERR_NO_MEMORY in the second line of an entry")
    told = found.told()
    assert (told["count"], len(told["lines"])) == (199, most)
    assert told["lines"][0]["at"] == 2000.5 and told["lines"][0]["text"].startswith("spark1 kernel: NVRM")


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        (b"1.0 h kernel: Out of memory: Killed process 4711 (VLLM::EngineCor) total-vm:1kB", True),
        (b"1.0 h kernel: Memory cgroup out of memory: Killed process 4711 (x) total-vm:1kB", True),
        (b"1.0 h kernel: oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null)", True),
        (b"1.0 h systemd[1]: x.service: A process of this unit has been killed by the OOM killer.", True),
        (b"1.0 h systemd[1]: x.service: Failed with result 'oom-kill'.", True),
        (b"1.0 h systemd[1]: x.service: Failed with result 'exit-code'.", False),
        (b'1.0 h earlyoom[1]: sending SIGTERM to process 1 uid 0 "x": badness 1, VmRSS 1 MiB', True),
        (b"1.0 h earlyoom[1]: mem avail:  9700 of 13855 MiB (70 %), swap free:    0 of    0 MiB ( 0 %)", False),
        (b"1.0 h systemd-oomd[1]: Killed /user.slice due to memory used (1) / total (2)", True),
        (b"1.0 h systemd-oomd[1]: Swap is currently not detected", False),
    ],
)
def test_which_lines_tell_of_something_that_was_ended(line: bytes, kept: bool) -> None:
    pattern, _ = examine_memory.KINDS["killed"]
    assert bool(pattern.search(line)) is kept


def test_versions_of_a_venv_are_read_without_importing_it(tmp_path: Path) -> None:
    packages = tmp_path / "lib/python3.12/site-packages"
    for name in (
        "vllm-0.11.0",
        "torch-2.9.0+cu130",
        "flashinfer_python-0.4.1",
        "ray-2.51.1",
        "numpy-2.2.6",
        "torchaudio-2.9",
    ):
        (packages / f"{name}.dist-info").mkdir(parents=True)
    (packages / "vllm-0.11.0.dist-info/RECORD").write_text("vllm/__init__.py,sha256=x,1\n")
    (tmp_path / "bin").mkdir()
    binary = tmp_path / "bin/vllm"
    assert examine_box.packages(call(), str(binary)) is None
    binary.write_text("#!/bin/sh\n")
    told = examine_box.packages(call(), str(binary))
    assert told is not None and told["versions"] == {
        "vllm": "0.11.0",
        "torch": "2.9.0+cu130",
        "flashinfer-python": "0.4.1",
        "ray": "2.51.1",
        "python": "3.12",
    }


def test_places_on_one_file_system_are_told_together(tmp_path: Path) -> None:
    told = examine_box.disks([str(tmp_path), str(tmp_path / "none"), str(tmp_path)])
    assert [disk["paths"] for disk in told] == [[str(tmp_path)]] and told[0]["size"] > 0
    assert told[0]["free"] == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.05)  # what df calls available


def test_settings_are_read_as_systemd_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "logind.conf"
    path.write_text("[Login]\n#IdleAction=ignore\n IdleAction = suspend\n;X=1\nHandleLidSwitch=ignore\nnoise\n")
    assert examine_box.settings(str(path)) == [["IdleAction", "suspend"], ["HandleLidSwitch", "ignore"]]
    assert examine_box.settings(str(tmp_path / "none")) == []


def test_where_there_is_no_nvidia_smi_nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nvidia, "PATH", str(tmp_path))
    assert nvidia.query(call(), "gpu", nvidia.GPUS) is None
    assert nvidia.owners(None) == {}


def test_a_whole_look_at_this_machine_is_quick_and_can_be_sent() -> None:
    memory = examine_memory.examine_memory(call(), ["none.service"], [])
    box = examine_box.examine_box(call(), ["/nowhere"], ["/nowhere/bin/vllm"], [])
    assert json.loads(json.dumps([memory, box]))
    assert box["models"] == {"/nowhere": None} and box["venvs"] == {"/nowhere/bin/vllm": None}
