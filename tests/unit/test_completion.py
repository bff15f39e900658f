"""What the shell offers at the press of a key."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FLEETCTL = str(Path(sys.executable).parent / "fleetctl")
FLEET = """\
boxes: {spark1: {}, spark2: {}, desk: {}}
models: {qwen: {}, small: {}}
layouts:
  split: {qwen: {}}
  replicas: {qwen: {}, small: {}}
"""


def offered(line: str, folder: Path, **environment: str) -> list[str]:
    """What bash is offered for the last word of a line, in a folder; "" is a word that has not begun."""
    words = line.split(" ")
    asked = {"_FLEETCTL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [FLEETCTL], cwd=folder, env=os.environ | asked | environment, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("fleetctl cutover --to ", ["replicas", "split"]),
        ("fleetctl plan --to s", ["split"]),
        ("fleetctl render --layout r", ["replicas"]),
        ("fleetctl drain sp", ["spark1", "spark2"]),
        ("fleetctl doctor spark1 d", ["desk"]),
        ("fleetctl link test spark", ["spark1", "spark2"]),
        ("fleetctl capacity calibrate de", ["desk"]),
        ("fleetctl capacity calibrate desk --model ", ["qwen", "small"]),
        ("fleetctl restart q", ["qwen"]),
        ("fleetctl lora push x --model q", ["qwen"]),
        ("fleetctl logs replicas/", ["replicas/qwen", "replicas/small"]),
        ("fleetctl tune s", ["small", "spark1", "spark2", "split/qwen"]),
        ("fleetctl explain U0", [f"U0{n}" for n in range(1, 10)]),
        ("fleetctl roll", ["rollback"]),
    ],
)
def test_names_come_from_the_fleets_file(line: str, names: list[str], tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    assert offered(line, tmp_path) == names


def test_the_file_is_the_one_that_the_line_or_the_environment_names(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(FLEET.replace("desk", "cellar"))
    assert offered("fleetctl drain --fleet other.yaml ce", tmp_path) == ["cellar"]
    assert offered("fleetctl drain ce", tmp_path, FLEETCTL_FLEET="other.yaml") == ["cellar"]


@pytest.mark.parametrize("text", [None, "boxes: [", "- a\n- b\n", "boxes: nothing\nlayouts: {split: here}\n", "\0"])
def test_with_no_file_or_a_broken_one_nothing_is_offered_and_nothing_is_said(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "fleet.yaml").write_text(text)
    assert offered("fleetctl drain ", tmp_path) == []
    assert offered("fleetctl restart ", tmp_path) == []
