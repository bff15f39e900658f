"""Models of a hub: as huggingface_hub leaves them in its cache, sent to another cache, and found there offline."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from hub_server import COMMIT, Hub, hub_of
from huggingface_hub import snapshot_download
from two_boxes import bring, call, flip, model_in, same_files

from fleetctl.checkpoint.fetch import fetch_model
from fleetctl.errors import SpecError
from fleetctl.onbox import manifests
from fleetctl.onbox.hub import fetch_weights
from fleetctl.onbox.main import OpError
from fleetctl.onbox.weightsproof import weights_look, weights_prove
from fleetctl.onbox.weightsprune import weights_aside, weights_back, weights_delete, weights_kept

REPO = "office/tiny"


@pytest.fixture(autouse=True)
def _kept_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "FOLDER", str(tmp_path / "manifests"))


def place(home: Path, revision: str = "") -> dict[str, Any]:
    return {"repo": REPO, "revision": revision, "env": {"HF_HOME": str(home)}}


def fetched(hub: Hub, home: Path, revision: str = "") -> Path:
    """What the engine's own Python fetches from the hub into a cache."""
    env = {"HF_ENDPOINT": hub.address, "HF_HOME": str(home)}
    told = fetch_weights(call(), python=sys.executable, repo=REPO, revision=revision, env=env, secrets="", limit=60)
    return Path(told["path"])


@pytest.mark.parametrize("revision", ["", COMMIT])
def test_a_revision_that_was_sent_is_what_huggingface_hub_finds_offline(tmp_path: Path, revision: str) -> None:
    with hub_of(model_in(tmp_path / "model", 100_000, 50)) as hub:
        path = fetched(hub, tmp_path / "a", revision)
    bring(place(tmp_path / "a", revision), place(tmp_path / "b", revision))
    found = Path(
        snapshot_download(REPO, revision=revision or None, cache_dir=tmp_path / "b/hub", local_files_only=True)
    )
    assert found.name == COMMIT and same_files(path, found)
    weights = found / "model-00001.safetensors"
    assert weights.is_symlink() and weights.resolve().parent.name == "blobs"
    assert weights_look(call(), [place(tmp_path / "b", revision)])[0]["state"] == "proven"


def test_a_file_that_is_not_what_the_hub_has_is_never_recorded_as_right(tmp_path: Path) -> None:
    with hub_of(model_in(tmp_path / "model", 1000)) as hub:
        path = fetched(hub, tmp_path / "a")
    flip((path / "model-00001.safetensors").resolve(), 700)
    with pytest.raises(OpError, match=r"not what the hub has: .*model-00001\.safetensors is another"):
        weights_prove(call(), place(tmp_path / "a"))


def test_a_disk_without_room_is_told_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model_in(tmp_path / "model", 1000)
    with hub_of(folder) as hub:
        real = Path.stat

        def huge(self: Path, **how: Any) -> Any:
            found = real(self, **how)
            if self.suffix != ".safetensors" or self.parent != folder:
                return found

            class Huge:
                st_size, st_mode = 2**60, found.st_mode

            return Huge()

        monkeypatch.setattr(Path, "stat", huge)
        sent = hub.sent
        with pytest.raises(OpError, match="no room: 1152921504606846976 bytes are to be fetched"):
            fetched(hub, tmp_path / "a")
        assert hub.sent - sent < 10_000


def test_this_machine_fetches_the_same_files_and_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_ENDPOINT", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    with hub_of(model_in(tmp_path / "model", 1000)) as hub:
        (tmp_path / "model" / "pytorch_model.bin").write_bytes(b"once more")
        env = {"HF_ENDPOINT": hub.address, "HF_TOKEN": "hf_secret"}
        found = fetch_model(REPO, None, env)
        assert "pytorch_model.bin" not in [path.name for path in found.iterdir()]
        assert "Bearer hf_secret" in hub.tokens
        with pytest.raises(SpecError, match="the hub knows no such model"):
            fetch_model("office/other", None, env)
        hub.gated = True
        with pytest.raises(SpecError, match="its publisher asks for consent") as failure:
            fetch_model("office/gated", None, env)
        assert "HF_TOKEN: {file: PATH}" in str(failure.value)


def kept(home: Path, *needed: str) -> list[dict[str, Any]]:
    uses = [{"place": place(home, commit), "why": "layout split (tiny)"} for commit in needed]
    return weights_kept(call(), uses or [{"place": place(home, "no-such"), "why": ""}], [])


def test_a_revision_goes_with_the_blobs_that_no_other_has_and_comes_back_until_then(tmp_path: Path) -> None:
    home = tmp_path / "a"
    with hub_of(model_in(tmp_path / "model", 1000, 500)) as hub:
        path = fetched(hub, home)
    repository = path.parent.parent
    other = path.parent / ("e" * 40)
    shutil.copytree(path, other, symlinks=True)
    (other / "model-00002.safetensors").unlink()
    (other / "model.safetensors.index.json").unlink()
    (one,) = [found for found in kept(home, COMMIT) if found["commit"] == COMMIT]
    assert one["needed"] == ["layout split (tiny)"] and one["by"] == "" and one["repo"] == REPO
    weights_aside(call(), one)
    assert not path.exists()
    weights_aside(call(), one)
    weights_back(call(), one)
    assert path.exists()
    weights_aside(call(), one)
    assert weights_delete(call(), one)["freed"] > 1500
    assert [found["commit"] for found in kept(home)] == ["e" * 40]
    assert not (repository / "refs" / "main").exists()
    assert (other / "model-00001.safetensors").exists(), "a blob that another revision has stays"
    assert len(list((repository / "blobs").iterdir())) == 2
