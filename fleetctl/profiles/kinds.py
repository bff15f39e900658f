"""What a box and a model folder are, from what a box told of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetctl.profiles.profile import BoxKind


@dataclass(frozen=True)
class ModelSeen:
    """A model as it is somewhere. ``name`` is a hub id or the folder's name; ``size`` are bytes of its weights."""

    name: str
    config: Mapping[str, str | int] = field(default_factory=dict)
    quantization: str = ""
    size: int | None = None


@dataclass(frozen=True)
class BoxSeen:
    """A box as it is, and the versions that are known of it."""

    kind: BoxKind
    driver: str | None = None


def box_seen(told: Mapping[str, Any]) -> BoxSeen:
    """From the op ``box_kind``. Several GPUs of one name are one kind; of different ones the first counts.

    A GPU that says no memory of its own (GB10: ``[N/A]``) shares that of the box.
    """
    smi = told.get("gpus") or {}
    rows = [[word.strip() for word in line.split(",")] for line in str(smi.get("out", "")).splitlines()]
    rows = [row for row in rows if len(row) == 3 and row[0]] if smi.get("rc") == 0 else []
    if not rows:
        return BoxSeen(BoxKind(gpus=0, memory=int(told["memory"]), machine=str(told.get("machine") or "") or None))
    name, memory, driver = rows[0]
    size = int(memory) * 2**20 if memory.isdecimal() else int(told["memory"])
    kind = BoxKind(gpu=plain(name), gpus=sum(row[0] == name for row in rows), memory=size)
    return BoxSeen(kind, driver if re.fullmatch(r"[0-9.]+", driver) else None)


def plain(gpu: str) -> str:
    """The name of a GPU without its maker: ``NVIDIA GB10`` is GB10."""
    return re.sub(r"^(NVIDIA|AMD|Intel\(R\))\s+", "", gpu).strip()


def model_seen(name: str, told: Mapping[str, Any] | None) -> ModelSeen:
    """From the op ``model_kind``, or an entry of a survey; None: nothing but its name is known."""
    if told is None:
        return ModelSeen(name)
    config, quantization = dict(told.get("config") or {}), str(told.get("quantization") or "")
    return ModelSeen(name, config, quantization, told.get("size") or None)
