"""Weights of the fleet's models: where they lie, whether they are proven, and the plans that bring them to boxes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fleetctl.errors import RefusedError, SpecError
from fleetctl.plan.types import Plan
from fleetctl.plan.weights import (
    PROVE,
    PUSH,
    REPAIR,
    ROOM,
    SEND,
    Lying,
    Push,
    Wanted,
    disk_refusals,
    push_steps,
    serving_on,
    share_of,
    sparing,
    wanted_by,
)
from fleetctl.render.layout import render_layout
from fleetctl.run.planning import Look, Subject
from fleetctl.run.staying import staying
from fleetctl.spec.fleet import Fleet
from fleetctl.spec.problems import near_or_all
from fleetctl.spec.units import parse_size

LOOK_LIMIT = 120.0
Found = list[tuple[Wanted, Lying]]
Hear = Callable[[str, str, dict[str, Any]], None]
"""Told of a box, a model and the progress of reading there."""


@dataclass(frozen=True)
class Wishes:
    """What the operator said of a transfer: ``limit`` in bytes/s of all boxes together (None: nothing was said)."""

    source: str | None = None
    to: tuple[str, ...] = ()
    limit: float | None = None
    streams: int | None = None


def wanted_places(fleet: Fleet, models: Collection[str] = (), boxes: Collection[str] = ()) -> list[Wanted]:
    """Places of models that some layout of the file has on a box. Raises SpecError for a name that is not there.

    With boxes that no layout has the model on, they get the place of those that it is on.
    """
    for names, known, kind in ((models, fleet.models, "model"), (boxes, fleet.boxes, "box")):
        for name in names:
            if name not in known:
                raise SpecError(f"there is no {kind} {name} in fleet.yaml", hint=near_or_all(name, known))
    found = wanted_by(render_layout(fleet, layout) for layout in fleet.layouts)
    for model in models or dict.fromkeys(one.model for one in found):
        mine = [one for one in found if one.model == model]
        if not mine and models:
            raise RefusedError(
                f"no layout has the model {model} where fleetctl knows its weights",
                hint="a container keeps what it fetches from a hub in a place of its own: write a folder as weights:, "
                "which is then mounted; a model that no layout uses has no boxes",
            )
        for box in boxes:
            if mine and not any(one.box == box for one in mine):
                found.append(mine[0].model_copy(update={"box": box}))
    return [one for one in found if (not models or one.model in models) and (not boxes or one.box in boxes)]


def look_at(subject: Subject, wanted: Iterable[Wanted]) -> Found:
    """What each box says of its places, without reading weights. Boxes that are away are left out."""
    by_box: dict[str, list[Wanted]] = {}
    for one in wanted:
        by_box.setdefault(one.box, []).append(one)

    def ask(box: Any) -> list[dict[str, Any]]:
        mine = by_box.get(box.name, [])
        told = box.call("weights_look", places=[one.place for one in mine], timeout=LOOK_LIMIT) if mine else []
        return list(told)

    told = subject.boxes.each(ask)
    return [
        (one, Lying.model_validate(lying))
        for box, mine in by_box.items()
        if box in told
        for one, lying in zip(mine, told[box], strict=True)
    ]


def verify(subject: Subject, wanted: Iterable[Wanted], hear: Hear, *, full: bool, accept: bool) -> Found:
    """Hold the files of every place against their checksums; where there are none yet, make them.

    Files that were touched since are read, with ``full`` all; ``accept`` makes checksums of what is there now.
    """
    by_box: dict[str, list[Wanted]] = {}
    for one in wanted:
        by_box.setdefault(one.box, []).append(one)

    def ask(box: Any) -> list[dict[str, Any]]:
        return [
            box.call_with(
                "weights_verify",
                {"place": one.place, "full": full, "accept": accept},
                on_event=lambda event, one=one: hear(box.name, one.model, event),
            )
            for one in by_box.get(box.name, [])
        ]

    told = subject.boxes.each(ask)
    return [
        (one, Lying.model_validate(lying))
        for box, mine in by_box.items()
        if box in told
        for one, lying in zip(mine, told[box], strict=True)
    ]


def disagreements(found: Found) -> dict[str, list[str]]:
    """Model → what is not the same on its boxes, a sentence each; none where all that is there is proven and alike."""
    said: dict[str, list[str]] = {}
    for model in dict.fromkeys(one.model for one, _ in found):
        mine = [(one, lying) for one, lying in found if one.model == model]
        lines = [f"{one.box}: {why_not_proven(one, lying)}" for one, lying in mine if lying.state != "proven"]
        proven = [(one, lying) for one, lying in mine if lying.state == "proven"]
        if proven and len({lying.tree for _, lying in proven}) > 1:
            first, base = proven[0]
            for other, lying in proven[1:]:
                if lying.tree != base.tree:
                    lines.append(f"{other.box}: not the same as on {first.box}: {_differ(base, lying)}")
        if lines:
            said[model] = lines
    return said


def _differ(one: Lying, other: Lying) -> str:
    names = [name for name in sorted({*one.sums, *other.sums}) if one.sums.get(name) != other.sums.get(name)]
    if not names:
        return "other files"
    return f"{', '.join(names[:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''}"


def why_not_proven(wanted: Wanted, lying: Lying) -> str:
    """What keeps weights from being proven, for people."""
    if lying.state == "missing":
        return f"{wanted.name} is not there"
    if lying.state == "broken":
        return f"{wanted.name} is not whole: {lying.broken[0]}"
    if lying.state == "differs":
        return lying.why
    if lying.state == "touched":
        return f"files of {wanted.name} changed since they were proven: {', '.join(lying.touched[:4])}"
    return f"{wanted.name} has no checksums yet"


def source_of(model: str, found: Found, named: str | None) -> tuple[Wanted, Lying]:
    """The box that has a model right. Raises RefusedError where that is not clear.

    One that an operator names; else one that is proven, or, where none is, one that has all of it; of several that
    are proven all have to be alike.
    """
    mine = [(one, lying) for one, lying in found if one.model == model]
    if named is not None:
        here = next(((one, lying) for one, lying in mine if one.box == named), None)
        if here is None or here[1].state in ("missing", "broken", "differs"):
            why = "it is not there" if here is None else why_not_proven(*here)
            raise RefusedError(f"{named} cannot send the weights of {model}: {why}; nothing was changed")
        return here
    for state in ("proven", "unproven", "touched"):
        good = [(one, lying) for one, lying in mine if lying.state == state]
        trees = {lying.tree for _, lying in good}
        if len(trees) > 1:
            told = ", ".join(f"{one.box} ({lying.by or 'found'})" for one, lying in good)
            raise RefusedError(
                f"the weights of {model} are not the same on {told}; nothing was changed",
                hint="say which box has the right ones: --from BOX",
            )
        if good:
            return good[0]
    told = "; ".join(f"{one.box}: {why_not_proven(one, lying)}" for one, lying in mine)
    raise RefusedError(
        f"no box has the weights of {model} whole ({told}); nothing was changed",
        hint=f"`fleetctl weights pull {model}` fetches them from the hub, with --from FOLDER from this machine",
    )


def plan_push(
    subject: Subject, seen: Look, models: Collection[str], wishes: Wishes, found: Found | None = None
) -> Plan:
    """The plan that brings models from the box that has them to all that need them (or to those named).

    ``found`` are the results of a verification, for a repair: a box whose bytes differ is a target then.
    """
    fleet = subject.fleet
    wanted = wanted_places(fleet, models)
    if wishes.to:
        wanted += [one for one in wanted_places(fleet, models, wishes.to) if one not in wanted]
    if wishes.source is not None:
        wanted += [one for one in wanted_places(fleet, models, (wishes.source,)) if one not in wanted]
    operation = PUSH if found is None else REPAIR
    found = look_at(subject, wanted) if found is None else found
    pushes, serving = list[Push](), set[str]()
    for model in dict.fromkeys(one.model for one in wanted):
        source, lying = source_of(model, found, wishes.source)
        targets = {
            one.box: (one, there)
            for one, there in found
            if one.model == model
            and one.box != source.box
            and (not wishes.to or one.box in wishes.to)
            and not (lying.state == there.state == "proven" and lying.tree == there.tree)
        }
        if not targets:
            continue
        serving |= set(serving_on(seen.observed, (source.box, *targets)))
        pushes.append((source, lying, targets))
    if refused := disk_refusals(pushes):
        raise RefusedError("\n".join([*refused, "nothing was sent"]), hint="`fleetctl weights prune` shows what can go")
    share = share_of(wishes.limit, serving, sum(len(targets) for _, _, targets in pushes))
    steps = [
        step
        for push in pushes
        for step in push_steps(*push, addresses=addresses(fleet), share=share, streams=wishes.streams)
    ]
    return staying(
        fleet.fleet,
        fleet.proxy.lead,
        seen,
        operation,
        (PROVE, ROOM, SEND),
        steps,
        sparing(wishes.limit, serving),
        "no engine that serves stops" if steps else "every box has these weights, proven by their checksums",
    )


def addresses(fleet: Fleet) -> Mapping[str, str]:
    """Where each box is reached by the others: its link, where it has one."""
    return {name: box.link or box.address for name, box in fleet.boxes.items()}


def parse_limit(text: str | None) -> float | None:
    """``2GB/s`` in bytes/s; ``none`` is no limit (infinity). None where nothing was said. Raises SpecError."""
    if text is None:
        return None
    if text == "none":
        return math.inf
    try:
        rate = float(parse_size(text.removesuffix("/s")))
    except ValueError as error:
        raise SpecError(f"--limit {text}: {error}", hint="write like 2GB/s, or none") from None
    if rate < 1e6:
        raise SpecError(f"--limit {text}: less than 1 MB/s is no transfer")
    return rate
