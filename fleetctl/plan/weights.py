"""Where the weights of models have to lie, and the plans that bring them there. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field

from fleetctl.facts.operations import WEIGHTS
from fleetctl.facts.types import Observed, Seen
from fleetctl.plan.types import PlannedStep, Stage
from fleetctl.render.release import Engine, Release, Value
from fleetctl.spec.units import size

PUSH, PULL, REPAIR, PRUNE = WEIGHTS
SPARING = 250_000_000
"""Bytes/s of all transfers of a command together while an engine serves on a box of them, unless told otherwise."""

PROVE = Stage(name="prove", summary="the box that sends has what its checksums say")
ROOM = Stage(name="room", summary="every disk has room, before anything is sent")
SEND = Stage(name="send", summary="part by part, each proven; in their place when all are there")


class Wanted(Value):
    """Weights that a box has to have for a model. ``python`` is the engine's, where it has one of its own."""

    model: str
    box: str
    place: dict[str, Any]
    python: str | None = None

    @property
    def name(self) -> str:
        """The folder or the hub id, with the revision that is pinned."""
        if "folder" in self.place:
            return str(self.place["folder"])
        revision = self.place["revision"]
        return f"{self.place['repo']}{'@' + revision if revision else ''}"


class Lying(Seen):
    """What a box said of a place (:func:`fleetctl.onbox.weightsproof.weights_look`). Sizes are bytes."""

    state: str
    key: str = ""
    commit: str = ""
    bytes: int = 0
    files: int = 0
    staged: int = 0
    free: int = 0
    device: int = 0
    tree: str | None = None
    by: str = ""
    at: float = 0.0
    broken: tuple[str, ...] = ()
    touched: tuple[str, ...] = ()
    why: str = ""
    wrong: dict[str, tuple[int, ...]] = {}
    sums: dict[str, str] = Field({}, repr=False)


Push = tuple[Wanted, Lying, Mapping[str, tuple[Wanted, Lying]]]
"""The place that sends and what lies there, and by box the places that are to get it and what lies there."""


def place_of(engine: Engine) -> dict[str, Any] | None:
    """The place of an engine's weights as boxes are asked for it; None where a container keeps its own."""
    if engine.weights.startswith("/"):
        return {"folder": engine.weights}
    if engine.image is not None:
        return None
    return {"repo": engine.weights, "revision": engine.revision or "", "env": engine.hub}


def wanted_by(releases: Iterable[Release]) -> list[Wanted]:
    """Each place once, in the order of the releases."""
    found: dict[tuple[str, str, str], Wanted] = {}
    for release in releases:
        for engine in release.all_engines:
            place = place_of(engine)
            for rank in engine.ranks if place is not None else ():
                assert place is not None
                key = (engine.model, rank.box, json.dumps(place, sort_keys=True))
                python = engine.binary.rpartition("/")[0] + "/python" if engine.binary else None
                found.setdefault(key, Wanted(model=engine.model, box=rank.box, place=place, python=python))
    return list(found.values())


def serving_on(observed: Observed, boxes: Iterable[str]) -> list[str]:
    """Engines of fleetctl that run on one of these boxes."""
    return sorted(
        {
            engine.id
            for box in boxes
            if (live := observed[box].release) is not None
            for engine, rank in (*live.ranks_on(box), *live.lodgers_on(box))
            if (unit := observed[box].units.get(rank.unit)) is not None and not unit.down
        }
    )


def share_of(wished: float | None, serving: Iterable[str], transfers: int) -> float | None:
    """Bytes/s that each of so many transfers of one command gets (None: as fast as it goes).

    ``wished`` is what all get together, as the operator said (infinity: no limit); None: nothing was said, and it is
    little while engines serve.
    """
    limit = wished if wished is not None else SPARING if any(True for _ in serving) else math.inf
    return None if limit == math.inf else limit / max(1, transfers)


def sparing(wished: float | None, serving: Iterable[str]) -> list[str]:
    """What is to be known before of a rate that nobody asked for."""
    names = ", ".join(sorted(serving))
    if wished is not None or not names:
        return []
    return [
        f"{names} serves on these boxes: all transfers together take at most {SPARING / 1e6:.0f} MB/s; --limit says "
        "another figure"
    ]


def at_most(share: float | None) -> str:
    """The rate of a transfer, in bytes a second, as the end of a step's line; "" where there is no limit."""
    return "" if share is None else f", at most {share / 1e6:.0f} MB/s"


def push_steps(
    source: Wanted,
    from_: Lying,
    targets: Mapping[str, tuple[Wanted, Lying]],
    *,
    addresses: Mapping[str, str],
    share: float | None,
    streams: int | None,
) -> list[PlannedStep]:
    """Prove the source, see that every disk has room, then send to all at once.

    ``addresses`` has the one of each box on the network between them; ``share`` is what each gets, in bytes/s (None: as
    fast as it goes), ``streams`` how many connections each gets (None: by its CPUs). Steps of several models
    can follow each other in one plan.
    """
    about = source.model
    prove = PlannedStep(
        id=f"prove.prove_weights.{source.box}/{about}",
        kind="prove_weights",
        stage=PROVE.name,
        box=source.box,
        target=source.model,
        params={"model": source.model, "place": source.place},
        summary=f"{source.box} has {source.name} as its checksums say"
        + ("" if from_.state == "proven" else f" (they are made: {size(from_.bytes)} are read)"),
    )
    rooms, sends = [], []
    for box, (wanted, lying) in targets.items():
        params = {"model": source.model, "from": source.box, "place_from": source.place, "place": wanted.place}
        rooms.append(
            PlannedStep(
                id=f"room.weights_room.{box}/{about}",
                kind="weights_room",
                stage=ROOM.name,
                box=box,
                target=source.model,
                params=params,
                summary=f"the disk of {box} has room for {source.name} ({size(lying.free)} are free)",
                after=(prove.id,),
            )
        )
        sends.append(
            PlannedStep(
                id=f"send.send_weights.{box}/{about}",
                kind="send_weights",
                stage=SEND.name,
                box=box,
                target=source.model,
                params={
                    **params,
                    "limit": share,
                    "streams": streams,
                    "addresses": {name: addresses[name] for name in (source.box, box)},
                },
                summary=f"{box} gets {source.name} from {source.box}: {_what(from_, lying)}{at_most(share)}",
            )
        )
    after = tuple(step.id for step in rooms)
    return [prove, *rooms, *(step.model_copy(update={"after": after}) for step in sends)]


def _what(from_: Lying, lying: Lying) -> str:
    """What is going to be sent, as far as that is known before checksums are compared."""
    whole = f"{from_.files} files, {size(from_.bytes)}"
    if lying.state == "missing":
        begun = f" ({size(lying.staged)} of an earlier transfer are there)" if lying.staged else ""
        return whole + begun
    if lying.wrong:
        parts = sum(len(one) or 1 for one in lying.wrong.values())
        return f"{parts} {'part that differs' if parts == 1 else 'parts that differ'}"
    return f"what differs of {whole}"


def disk_refusals(pushes: Iterable[Push]) -> list[str]:
    """Disks without room for weights that are to arrive whole, a sentence each. Models of one command share a disk."""
    found = []
    left: dict[tuple[str, int], int] = {}
    for _, source, targets in pushes:
        for box, (wanted, lying) in targets.items():
            need, disk = source.bytes - lying.staged, (box, lying.device)
            free = left.get(disk, lying.free)
            if lying.state != "missing":
                continue
            if need > free:
                others = " beside the others" if disk in left else ""
                found.append(
                    f"{box}: {wanted.name} needs {size(need)} on the disk and {size(max(0, free))} are free{others}: "
                    f"{size(need - max(0, free))} are missing"
                )
            left[disk] = free - need
    return found
