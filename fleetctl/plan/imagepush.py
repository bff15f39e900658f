"""The plan that brings container images from the box that has them to those that lack them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fleetctl.facts.types import Seen
from fleetctl.plan.images import short
from fleetctl.plan.types import PlannedStep, Stage
from fleetctl.plan.weights import at_most
from fleetctl.render.release import Value
from fleetctl.spec.units import size

PUSH = "images push"
ROOM = Stage(name="room", summary="every disk has room, before anything is sent")
SEND = Stage(name="send", summary="saved on the one box, loaded on the other, the same ID afterwards")
SPARE = 2**30
"""Bytes of a disk that stay free."""


class ImageWanted(Value):
    """An image that boxes are to have: what runs it, its name, its ID where it is pinned, and the models it is for."""

    engine: str
    name: str
    identity: str | None = None
    models: tuple[str, ...] = ()
    boxes: tuple[str, ...] = ()

    @property
    def reference(self) -> str:
        """What a box is asked for."""
        return self.identity or self.name

    @property
    def tag(self) -> str:
        """A name that the image can be given on another box; empty for one that only a registry can give."""
        return "" if "@" in self.name or self.name.startswith("sha256:") else self.name


class ImageRoom(Seen):
    """A file system that an image is written to on its way."""

    path: str
    device: int
    free: int


class ImageThere(Seen):
    """What a box said of an image (:func:`fleetctl.onbox.images.images_look`). ``id`` is empty where it has none."""

    id: str = ""
    size: int = 0
    names: tuple[str, ...] = ()
    rooms: tuple[ImageRoom, ...] = ()
    problem: str = ""


def missing_room(need: int, there: ImageThere) -> str | None:
    """Where a box has no room for an image of so many bytes; None where it has.

    It is written once as it arrives and once unpacked; where both are one file system, that takes both.
    """
    by_device: dict[int, list[ImageRoom]] = {}
    for room in there.rooms:
        by_device.setdefault(room.device, []).append(room)
    for rooms in by_device.values():
        wanted = need * len(rooms) + SPARE
        if rooms[0].free < wanted:
            return f"the disk of {rooms[0].path} has {size(rooms[0].free)} free, and {size(wanted)} are wanted"
    return None


def push_steps(
    wanted: ImageWanted,
    source: tuple[str, ImageThere],
    targets: Iterable[str],
    *,
    addresses: Mapping[str, str],
    share: float | None,
) -> list[PlannedStep]:
    """See that every disk has room, then send to all at once. ``share`` is what each gets, in bytes/s."""
    box_from, there = source
    targets = list(targets)
    about: dict[str, Any] = {
        "engine": wanted.engine,
        "image": wanted.name,
        "reference": wanted.reference,
        "tag": wanted.tag,
        "id": there.id,
        "size": there.size,
    }
    rooms = [
        PlannedStep(
            id=f"room.image_room.{box}/{wanted.name}",
            kind="image_room",
            stage=ROOM.name,
            box=box,
            target=wanted.name,
            params=about,
            summary=f"{box} has room for {wanted.name} ({size(there.size)})",
        )
        for box in targets
    ]
    sends = [
        PlannedStep(
            id=f"send.send_image.{box}/{wanted.name}",
            kind="send_image",
            stage=SEND.name,
            box=box,
            target=wanted.name,
            params={
                **about,
                "from": box_from,
                "limit": share,
                "addresses": {name: addresses[name] for name in (box_from, box)},
            },
            summary=f"{box} gets {wanted.name} ({short(there.id)}, {size(there.size)}) from {box_from}{at_most(share)}",
            after=tuple(step.id for step in rooms),
        )
        for box in targets
    ]
    return [*rooms, *sends]
