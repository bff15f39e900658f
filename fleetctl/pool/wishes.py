"""What operators wish of the models of a box, in a file: it outlasts the worker, and the box's own restarts.

The file is a JSON object, engine → ``{"pinned": true}``, ``{"wish": "evict"}`` or both; ``pinned`` is there where it
is not as fleet.yaml has it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetctl.errors import FleetError
from fleetctl.pool.residency import Wish

FILE = Path("/var/lib/fleetctl/pool/wishes.json")


class WishesError(FleetError):
    """The file cannot be read or written."""


@dataclass(frozen=True)
class Wished:
    """What is wished of one engine. ``pinned`` None: as fleet.yaml says."""

    pinned: bool | None = None
    wish: Wish | None = None


def read(path: Path) -> dict[str, Wished]:
    """Engine → what is wished of it; nothing where there is no file. Raises WishesError for one that is damaged."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): _wished(one) for name, one in told.items()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise WishesError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, AttributeError, TypeError) as error:
        hint = "remove it: pins are then as fleet.yaml has them, and nothing else is wished"
        raise WishesError(f"{path} is damaged: {error}", hint=hint) from None


def _wished(told: Any) -> Wished:
    pinned, wish = told.get("pinned"), told.get("wish")
    if pinned not in (None, True, False) or wish not in (None, "load", "evict"):
        raise ValueError(f"{told} is no wish")
    return Wished(pinned, wish)


def write(path: Path, wishes: Mapping[str, Wished]) -> None:
    """Replace the file; it is there as a whole or as it was, after a power cut too. Raises WishesError."""
    tree = {
        name: {key: value for key, value in vars(one).items() if value is not None}
        for name, one in sorted(wishes.items())
        if one != Wished()
    }
    new = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(tree, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        raise WishesError(f"{path} cannot be written: {error.strerror}") from None
