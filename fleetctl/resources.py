"""The root folders (``templates``, ``systemd``, ``haproxy`` and so on), from the wheel or from a checkout."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

from fleetctl.errors import FleetError

Folder = Literal[
    "templates", "systemd", "haproxy", "keepalived", "nats", "nftables", "playbooks", "evals", "prometheus", "web"
]


def root_folder(name: Folder) -> Path:
    """Path of a root folder: the packaged copy where there is one, else the checkout's own.

    Raises FleetError when neither exists.
    """
    here = Path(__file__).resolve().parent
    for folder in (here / "_root" / name, here.parent / name):
        if folder.is_dir():
            return folder
    raise FleetError(
        f"the folder {name}/ of fleetctl is missing beside {here}",
        hint="install fleetctl again, or run it from a complete checkout",
    )


@cache
def root_text(folder: Folder, name: str) -> str:
    """Text of a file in a root folder. Raises FleetError when it is missing."""
    path = root_folder(folder) / name
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise FleetError(
            f"cannot read {path}: {error.strerror}", hint="install fleetctl again, or complete the checkout"
        ) from error
