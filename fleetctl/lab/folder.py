"""Which entries of a folder are a lab's own: nothing else in it is ever removed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection
from pathlib import Path

from fleetctl.errors import LabError

LOCK = ".lock"
STATE = "lab.json"
IMAGE = "standin-image.tar"
_FOLDERS = ("base", "base-podman", "base-docker", "boxes", "engines", "keys")
_FILES = (STATE, "fleet.yaml", "known_hosts", "id_ed25519", "id_ed25519.pub", ".fleet.yaml.written", IMAGE)
# What write_whole() leaves when it is killed: the name between dots, and the process.
_PARTIAL = re.compile(r"\.(.+)\.\d+")


def refuse_foreign(root: Path) -> None:
    """Raises LabError for a folder that is no lab: without a lab.json, and with something in it that no lab makes."""
    names = {entry.name for entry in root.iterdir()}
    if STATE not in names and not all(_is_ours(name) for name in names):
        raise LabError(f"{root} is not a lab: nothing was removed", hint="Check the folder given.")


def remove(root: Path, keep: Collection[Path]) -> None:
    """Remove what a lab has made in its folder but for ``keep`` and the lock, and leave what it has not."""
    for entry in root.iterdir():
        if entry in keep or entry.name == LOCK or not _is_ours(entry.name):
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _is_ours(name: str) -> bool:
    partial = _PARTIAL.fullmatch(name)
    return name == LOCK or (partial[1] if partial else name) in (*_FOLDERS, *_FILES)
