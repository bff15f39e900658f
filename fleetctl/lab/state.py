"""What a lab remembers on disk: its boxes, their binds, and what runs containers in them (root/lab.json)."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from fleetctl.errors import LabError

Containers = Literal["docker", "podman"] | None
"""What runs containers in the boxes of a lab; None: they have nothing of the kind."""


@dataclass(frozen=True)
class Bind:
    """A host folder or file shown read-only in every box at ``path`` (the same path when empty)."""

    source: Path
    path: Path | None = None

    @property
    def target(self) -> Path:
        return self.path or self.source

    @property
    def argument(self) -> str:
        """systemd-nspawn's spelling, with its separator escaped."""
        return ":".join(str(one).replace("\\", "\\\\").replace(":", "\\:") for one in (self.source, self.target))


@dataclass(frozen=True)
class LabBox:
    """One box: how to reach it, and nothing about whether it runs."""

    name: str
    address: str
    link_address: str
    user: str
    key: Path
    known_hosts: Path


@dataclass(frozen=True)
class LabState:
    boxes: tuple[LabBox, ...]
    binds: tuple[Bind, ...]
    containers: Containers = None


def save(path: Path, state: LabState, bridge: str, subnet: str, link_subnet: str) -> None:
    document = {
        "bridge": bridge,
        "subnet": subnet,
        "link_subnet": link_subnet,
        "boxes": [{key: _plain(value) for key, value in asdict(box).items()} for box in state.boxes],
        "binds": [{"source": str(bind.source), "path": str(bind.target)} for bind in state.binds],
        "containers": state.containers,
    }
    write_whole(path, json.dumps(document, indent=2) + "\n")


def load(path: Path) -> LabState | None:
    """The state in ``path``; None when there is none; LabError when it cannot be read."""
    try:
        document: dict[str, Any] = json.loads(path.read_text())
        boxes = tuple(
            LabBox(
                name=one["name"],
                address=one["address"],
                link_address=one["link_address"],
                user=one["user"],
                key=Path(one["key"]),
                known_hosts=Path(one["known_hosts"]),
            )
            for one in document["boxes"]
        )
        binds = tuple(Bind(Path(one["source"]), Path(one["path"])) for one in document["binds"])
        containers = document.get("containers")
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise LabError(
            f"{path} is damaged: {error}", hint="Remove the lab and make it again: lab down, lab up."
        ) from error
    return LabState(boxes, binds, containers)


@dataclass(frozen=True)
class Network:
    """Bridge and subnets of a lab."""

    bridge: str
    subnet: str
    link_subnet: str


def load_network(path: Path) -> Network | None:
    """The network of the lab whose state is in ``path``; None when there is no such lab (or it cannot be read)."""
    try:
        document: dict[str, Any] = json.loads(path.read_text())
        return Network(document["bridge"], document["subnet"], document["link_subnet"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def free_network() -> Network:
    """The first network of this kind whose bridge is not there yet: labs in other folders have theirs."""
    taken = {path.name for path in Path("/sys/class/net").iterdir()}
    number = next(number for number in range(200) if f"fleetlab{number}" not in taken)
    return Network(f"fleetlab{number}", f"10.77.{number}.0/24", f"10.78.{number}.0/24")


def checked_binds(binds: Sequence[Bind]) -> tuple[Bind, ...]:
    """The same binds with absolute paths; LabError for a source that is not there."""
    result = []
    for bind in binds:
        source = bind.source.resolve()
        if not source.exists():
            raise LabError(f"cannot show {bind.source} in the boxes: it does not exist")
        target = bind.path or bind.source
        if not target.is_absolute():
            raise LabError(f"the place of {bind.source} in the boxes must be an absolute path, not {target}")
        result.append(Bind(source, target))
    return tuple(result)


def write_whole(path: Path, text: str, mode: int = 0o644) -> None:
    """Write ``text`` so that a reader sees the old file or the new one, never a part."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text)
    partial.chmod(mode)
    partial.replace(path)


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value
