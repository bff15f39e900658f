"""Weights of a hub id, fetched with the engine's own Python while something else serves."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest
from checkpoints import llama, write_model
from hub_server import hub_of

from fleetctl.onbox.hub import fetch_weights, hub_library, variables
from fleetctl.onbox.main import Call, OpError


def fetch(
    env: dict[str, str], *, python: str = sys.executable, repo: str = "office/tiny", secrets: str = ""
) -> dict[str, str]:
    call = Call(1, lambda message: None)
    return fetch_weights(call, python=python, repo=repo, revision="", env=env, secrets=secrets, limit=60)


def test_weights_are_fetched_once_and_are_then_enough_without_the_hub(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", tensors=llama(hidden=64, inner=128, vocabulary=512))
    (folder / "pytorch_model.bin").write_bytes(b"the same weights once more")
    secrets = tmp_path / "qwen.env"
    secrets.write_text('HF_TOKEN="hf_s\\$ecret"\n')
    with hub_of(folder) as hub:
        env = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home")}
        path = Path(fetch(env, secrets=str(secrets))["path"])
        names = {one.name for one in path.iterdir()}
        assert "config.json" in names and any(name.endswith(".safetensors") for name in names)
        assert "pytorch_model.bin" not in names, "one format is enough"
        assert "Bearer hf_s$ecret" in hub.tokens
        sent = hub.sent
        assert fetch(env)["path"] == str(path)
        assert hub.sent - sent < 10_000, "what is there is not fetched again"
    assert fetch({**env, "HF_ENDPOINT": "http://127.0.0.1:9"})["path"] == str(path)
    assert fetch({**env, "HF_HUB_OFFLINE": "1"})["path"] == str(path)


def test_what_cannot_be_fetched_is_told_with_the_reason_and_no_traceback(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", tensors=llama(hidden=64, inner=128, vocabulary=512))
    with hub_of(folder) as hub, pytest.raises(OpError, match="the weights office/other cannot be fetched: ") as failure:
        fetch({"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home")}, repo="office/other")
    assert "Traceback" not in str(failure.value)


def test_an_engine_without_the_library_or_a_python_fetches_its_own(tmp_path: Path) -> None:
    assert "there is no" in fetch({}, python=str(tmp_path / "none"))["left"]
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 3\n")
    bare.chmod(bare.stat().st_mode | stat.S_IXUSR)
    assert fetch({}, python=str(bare))["left"] == f"{bare} has no huggingface_hub"


@pytest.mark.parametrize(("python", "there"), [(sys.executable, True), ("/bin/false", False), ("/none/python", False)])
def test_whether_a_box_can_fetch_is_asked_of_the_engines_own_python(python: str, there: bool) -> None:
    assert hub_library(Call(1, lambda message: None), python) == {"there": there}


def test_secrets_are_read_as_systemd_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "x.env"
    file.write_text('A="a\\"b\\\\c\\$d\\`"\nB=""\n')
    assert variables(str(file)) == {"A": 'a"b\\c$d`', "B": ""}
