"""Profiles, playbooks and mixes are YAML of people: whatever is wrong with one is a message that names the file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetctl.bench.mix import load_mix
from fleetctl.errors import SpecError
from fleetctl.plan.playbook import parse_playbook
from fleetctl.profiles.folders import known_profiles
from fleetctl.profiles.profile import parse_profile
from fleetctl.spec.plain import LONGEST, plain_text

DAMAGED = {
    "13th month": "date: 2026-13-45\n",
    "hour 99": "date: 2026-01-01T99:99:99Z\n",
    "brackets without end": "[" * 5000,
    "braces without end": "{" * 5000,
    "number of 5,000 digits": "a: " + "9" * 5000,
    "no number": "a: !!int x\n",
    "no float": "a: !!float x\n",
    "no time": "a: !!timestamp x\n",
    "object of Python": "a: !!python/object/apply:os.getcwd []\n",
    "alias of nothing": "a: *b\n",
    "itself": "prompt: &a [*a]\n",
    "mapping as key": "? {a: b}\n: 1\n",
    "number as key": "1: 2\n",
    "nothing as key": "null: 3\n",
    "control character": "a: \x07\n",
    "list": "- 1\n",
    "nothing": "",
}


def mix_of(text: str, folder: Path) -> object:
    file = folder / "told.yaml"
    file.write_text(text)
    return load_mix(str(file))


READERS: dict[str, Callable[[str, Path], object]] = {
    "profile": lambda text, folder: parse_profile(text, "told.yaml"),
    "playbook": lambda text, folder: parse_playbook(text, "told.yaml", ["stage"]),
    "mix": mix_of,
}


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_refused_with_its_name(kind: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"told\.yaml"):
        READERS[kind](text, tmp_path)


def test_what_has_no_end_or_is_no_text_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "long").write_text("#" * (LONGEST + 1))
    (tmp_path / "utf16").write_bytes("date: 1".encode("utf-16"))
    for name in ("pipe", "device", "loop", "long", "utf16", "none", "."):
        file = tmp_path / name
        with pytest.raises(SpecError, match=re.escape(str(file))):
            plain_text(file)
        if name not in ("none", "."):
            file.rename(tmp_path / "told.yaml")
            with pytest.raises(SpecError, match=r"told\.yaml"):
                known_profiles([tmp_path])
            (tmp_path / "told.yaml").unlink()
