"""An engine starts with the adapters that its box keeps: systemd/adapters.py, as the unit runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fleetctl.checkpoint.adapter import read_adapter
from fleetctl.lab.tinylora import make_tiny_lora
from fleetctl.resources import root_text

ECHO = [sys.executable, "-c", "import sys; print(*sys.argv[1:])"]


def keep(folder: Path, *names: str, **changes: Any) -> Path:
    """A folder as fleetctl keeps it on a box, with adapters of the model ``m``."""
    entries = {}
    for number, name in enumerate(names):
        local = read_adapter(make_tiny_lora(folder / "made" / name, seed=number))
        place = folder / "m" / name / local.digest
        place.parent.mkdir(parents=True, exist_ok=True)
        local.folder.rename(place)
        entries[name] = {"digest": local.digest, "files": local.files, "rank": 8, **changes}
    (folder / "index.json").write_text(json.dumps({"serial": 1, "adapters": {"m": entries, "other": {}}}))
    return folder


def start(folder: Path, *words: str, model: str = "m") -> tuple[list[str], str]:
    """What the command gets, and what is said of it."""
    script = folder / "adapters.py"
    script.write_text(root_text("systemd", "adapters.py"))
    argv = [sys.executable, str(script), str(folder), model, "--", *ECHO, *words]
    ran = subprocess.run(argv, capture_output=True, text=True, check=True)
    return ran.stdout.split(), ran.stderr


def test_whole_adapters_come_last_on_the_command_line(tmp_path: Path) -> None:
    told, said = start(keep(tmp_path, "b", "a"), "serve", "--max-lora-rank", "16")
    assert told[:4] == ["serve", "--max-lora-rank", "16", "--lora-modules"]
    assert [word.partition("=")[0] for word in told[4:]] == ["a", "b"]
    assert all((Path(word.partition("=")[2]) / "adapter_config.json").is_file() for word in told[4:])
    assert said == ""


@pytest.mark.parametrize("model", ["other", "unknown"])
def test_without_adapters_the_command_is_what_it_was_and_the_folder_is_there(tmp_path: Path, model: str) -> None:
    told, said = start(keep(tmp_path, "a"), "serve", model=model)
    assert (told, said, (tmp_path / model).is_dir()) == (["serve"], "", True)


def _gone(place: Path) -> None:
    (place / "adapter_config.json").unlink()


def _short(place: Path) -> None:
    path = place / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def _noise(place: Path) -> None:
    path = place / "adapter_model.safetensors"
    path.write_bytes(b"\xff" * path.stat().st_size)


def _link(place: Path) -> None:
    path = place / "adapter_config.json"
    path.rename(place / "real")
    path.symlink_to(place / "real")


@pytest.mark.parametrize(
    ("spoil", "says"), [(_gone, "is missing"), (_short, "bytes of"), (_noise, "damaged"), (_link, "is missing")]
)
def test_one_that_would_keep_the_engine_from_starting_is_left_out(tmp_path: Path, spoil: Any, says: str) -> None:
    keep(tmp_path, "a", "b")
    spoil(next((tmp_path / "m" / "a").iterdir()))
    told, said = start(tmp_path, "serve")
    assert [word.partition("=")[0] for word in told[2:]] == ["b"]
    assert "without a: " in said and says in said, said


def test_one_of_a_higher_rank_than_the_engine_takes_now_is_left_out(tmp_path: Path) -> None:
    told, said = start(keep(tmp_path, "a", rank=32), "serve", "--max-lora-rank", "16")
    assert (told, "it has rank 32, and the engine takes 16" in said) == (["serve", "--max-lora-rank", "16"], True)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"adapters": []}',
        '{"adapters": {"m": {"../x": {"digest": "a"}}}}',
        '{"adapters": {"m": {"a": 7}}}',
        '{"adapters": {"m": {"a": {"digest": "0123456789abcdef", "rank": "x", "files": {}}}}}',
    ],
)
def test_a_damaged_index_keeps_no_engine_from_starting(tmp_path: Path, text: str) -> None:
    (tmp_path / "index.json").write_text(text)
    told, said = start(tmp_path, "serve")
    assert told == ["serve"] and "adapters:" in said
