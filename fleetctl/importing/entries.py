"""What was found, placed: which entries of fleet.yaml come of it, beside those of a fleet that is there already."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from fleetctl.errors import SpecError
from fleetctl.importing.found import Found, FoundBox, FoundModel, Note, Setting, unlike
from fleetctl.proxy.lint.findings import Place
from fleetctl.spec.fleet import Box, Fleet
from fleetctl.spec.problems import near_or_all

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")  # as fleet.yaml has them


@dataclass
class Seat:
    """One box of a placement, and what is its own there."""

    box: str
    share: float | None = None
    cache: int | None = None
    concurrency: int | None = None


@dataclass
class Placing:
    """A model in a layout. Without seats it is a sketch: on which boxes it runs is not known."""

    model: str
    split: bool
    seats: list[Seat]
    ranks: int = 1
    pipeline: bool = False
    concurrency: int | None = None
    port: int | None = None
    master_port: int | None = None
    share: float | None = None
    cache: int | None = None


@dataclass
class Entries:
    """What goes into fleet.yaml. ``layout`` is the name of the one layout that comes of it, ``placings`` are in it."""

    kind: str
    boxes: dict[str, FoundBox] = field(default_factory=dict)
    models: dict[str, FoundModel] = field(default_factory=dict)
    layout: str = ""
    placings: list[Placing] = field(default_factory=list)
    superseded: list[str] = field(default_factory=list)
    proxy: dict[str, Setting] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    @property
    def placed(self) -> bool:
        """There is a layout to be written, and not only the sketch of one."""
        return bool(self.placings) and all(placing.seats for placing in self.placings)


def entries(
    found: Found,
    fleet: Fleet | None = None,
    *,
    boxes: Sequence[str] = (),
    layout: str | None = None,
    model: str | None = None,
) -> Entries:
    """The entries. ``boxes`` are those to run on, ``layout`` the name of the layout, ``model`` what servers serve.

    Raises SpecError for a box or a model that there is not, and a layout that there is already.
    """
    for option, name in [*(("--boxes", box) for box in boxes), *([("--layout", layout)] if layout is not None else [])]:
        if not _NAME.fullmatch(name):
            raise SpecError(f"{option}: {name!r} is no name", hint="names are lower-case letters, digits and dashes")
    made = Entries(found.kind, proxy=dict(found.proxy), notes=sorted(found.notes))
    there = _boxes(made, found, fleet)
    _known(boxes, {*there, *(fleet.boxes if fleet is not None else ()), *(boxes if fleet is None else ())}, "box")
    if layout is not None and fleet is not None and layout in fleet.layouts:
        raise SpecError(f"the layout {layout} is in fleet.yaml already", hint="name another with --layout")
    for one in found.models:
        name = unlike(one.name, [*(fleet.models if fleet is not None else ()), *made.models])
        if name != one.name:
            made.notes.append(Note(one.place, f"there is a model {one.name} already: this one is {name}"))
        made.models[name] = one
        made.placings.append(_placing(made, name, one, fleet, list(boxes)))
    if found.boxes:
        served = _served(made, found, fleet, model)
        if served is not None:
            made.placings.append(_servers(found, served, there, list(boxes)))
    for placing in made.placings if fleet is not None else ():
        if (
            fleet is not None
            and placing.port == fleet.proxy.port
            and {seat.box for seat in placing.seats} & {*fleet.proxy.on}
        ):
            made.notes.append(Note(_place(found), f"port {placing.port} is that of the proxy: the engine gets another"))
            placing.port = None
    made.layout = layout or _layout(made.placings, fleet)
    known = {entry.unit for entry in fleet.superseded} if fleet is not None else set()
    made.superseded = [unit for unit in found.superseded if unit not in known]
    return made


def _place(found: Found) -> Place:
    """Where what was found begins."""
    return (found.models or found.boxes)[0].place


def _known(names: Sequence[str], known: set[str], what: str) -> None:
    for name in names:
        if name not in known:
            raise SpecError(f"there is no {what} {name}", hint=near_or_all(name, sorted(known)))


def _boxes(made: Entries, found: Found, fleet: Fleet | None) -> dict[str, FoundBox]:
    """Name in fleet.yaml of every server → the server. One whose address a box has is that box."""
    there: dict[str, FoundBox] = {}
    for box in found.boxes:
        same = [
            name
            for name, known in (fleet.boxes if fleet is not None else {}).items()
            if {box.address, box.address.split(".")[0]} & _called(name, known)
        ]
        if same:
            there[same[0]] = box
            continue
        name = unlike(box.name, [*(fleet.boxes if fleet is not None else ()), *there])
        there[name] = made.boxes[name] = box
    return there


def _called(name: str, box: Box) -> set[str]:
    """Names and addresses of a box that is there."""
    return {name, box.address, *({box.link} if box.link else ()), *({box.ssh.host} if box.ssh.host else ())}


def _served(made: Entries, found: Found, fleet: Fleet | None, model: str | None) -> str | None:
    """The model that the servers of a proxy serve."""
    if fleet is None:
        if model is None:
            made.notes.append(Note(found.boxes[0].place, "which model they serve is not in this file: --model NAME"))
        return model
    if model is not None:
        _known([model], set(fleet.models), "model")
        return model
    if len(fleet.models) == 1:
        return next(iter(fleet.models))
    names = ", ".join(fleet.models)
    made.notes.append(Note(found.boxes[0].place, f"which model they serve is not in this file: --model, of {names}"))
    return None


def _servers(found: Found, model: str, there: dict[str, FoundBox], boxes: list[str]) -> Placing:
    used = {name: box for name, box in there.items() if not boxes or name in boxes}
    limits = {box.concurrency for box in used.values()}
    ports = {box.port for box in used.values()}
    same = limits.pop() if len(limits) == 1 else None
    seats = [Seat(name, concurrency=None if same else box.concurrency) for name, box in used.items()]
    return Placing(model, False, seats, concurrency=same, port=_unusual(ports.pop()) if len(ports) == 1 else None)


def _placing(made: Entries, name: str, one: FoundModel, fleet: Fleet | None, boxes: list[str]) -> Placing:
    split = one.ranks > 1
    placing = Placing(
        name,
        split,
        [],
        ranks=one.ranks,
        pipeline=one.pipeline,
        concurrency=one.concurrency,
        port=_unusual(one.port),
        master_port=one.master_port if split else None,
        share=one.share,
        cache=one.cache,
    )
    names = boxes or (list(fleet.boxes) if fleet is not None else [])
    if split and names and len(names) < one.ranks:
        told = f"{name} runs over {one.ranks} boxes (or GPUs), and there are {len(names)}"
        made.notes.append(Note(one.place, f"{told}: no layout was made for it"))
        names = []
    if split:
        names = names[: one.ranks]
    placing.seats = [Seat(box, _share(made, one, box, fleet), one.cache) for box in names]
    return placing


def _unusual(port: int | None) -> int | None:
    """A port that has to be said: without one an engine has 8000, or the next that is free."""
    return None if port == 8000 else port


def _share(made: Entries, one: FoundModel, box: str, fleet: Fleet | None) -> float | None:
    """The share of a box's memory, where its reserve leaves so much."""
    if one.share is None or fleet is None:
        return one.share
    memory, reserve = fleet.boxes[box].memory, fleet.boxes[box].reserve
    room = (memory - reserve) * 100 // memory / 100 if memory else 0.0
    if one.share <= room:
        return one.share
    told = f"gpu_memory_utilization {one.share:g} is more than the reserve of {box} leaves ({room:g}): left out"
    made.notes.append(Note(one.place, f"{told}, so that it gets what is there"))
    return None


def _layout(placings: list[Placing], fleet: Fleet | None) -> str:
    kinds = {"split" if placing.split else "replicas" for placing in placings}
    name = kinds.pop() if len(kinds) == 1 else "imported"
    taken = list(fleet.layouts) if fleet is not None else []
    return unlike("imported", taken) if name in taken else name
