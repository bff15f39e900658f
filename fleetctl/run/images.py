"""Container images of the fleet: which boxes have which, and the plan that brings them to the others."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from fleetctl.errors import RefusedError, SpecError
from fleetctl.plan.imagepush import PUSH, ROOM, SEND, ImageThere, ImageWanted, missing_room, push_steps
from fleetctl.plan.images import short
from fleetctl.plan.types import Plan
from fleetctl.plan.weights import serving_on, share_of, sparing
from fleetctl.run.planning import Look, Subject
from fleetctl.run.staying import staying
from fleetctl.run.weights import addresses
from fleetctl.spec.fleet import Fleet
from fleetctl.spec.fleet_model import Container
from fleetctl.spec.problems import near_or_all

LOOK_LIMIT = 120.0
Found = dict[str, ImageThere]
"""Box → what it said of an image."""


def images_of(fleet: Fleet) -> list[ImageWanted]:
    """Images that models of the file are started from, with the boxes that some layout has them on.

    An image among ``builds:`` that no model is started from yet is wanted on every box.
    """
    found: dict[tuple[str, str, str | None], ImageWanted] = {}
    for name in fleet.models:
        launch = fleet.launch(name)
        if not isinstance(launch, Container):
            continue
        placed = {box for layout in fleet.layouts.values() if name in layout for box in layout[name].boxes}
        key = (launch.engine, launch.image, launch.id)
        before = found.get(key, ImageWanted(engine=launch.engine, name=launch.image, identity=launch.id))
        boxes = tuple(box for box in fleet.boxes if box in placed or box in before.boxes)
        found[key] = before.model_copy(update={"models": (*before.models, name), "boxes": boxes})
    for build in fleet.builds.values():
        if isinstance(build, Container) and (key := (build.engine, build.image, build.id)) not in found:
            found[key] = ImageWanted(engine=build.engine, name=build.image, identity=build.id, boxes=tuple(fleet.boxes))
    return list(found.values())


def chosen(fleet: Fleet, name: str, engine: str | None = None) -> list[ImageWanted]:
    """The images that a word names: a model's, one that models are started from, or, with ``engine``, any.

    Raises SpecError, with the nearest name, for a word that is none.
    """
    known = images_of(fleet)
    build = fleet.builds.get(name)
    if isinstance(build, Container):
        return [one for one in known if (one.engine, one.name, one.identity) == (build.engine, build.image, build.id)]
    if name in fleet.models:
        mine = [one for one in known if name in one.models]
        if not mine:
            raise SpecError(f"the model {name} is not started from an image", hint="see launch: in fleet.yaml")
        return mine
    mine = [one for one in known if name in (one.name, one.identity)]
    if mine or engine is None:
        if not mine:
            names = [*(model for one in known for model in one.models), *(one.name for one in known)]
            raise SpecError(
                f"no model of fleet.yaml is started from the image {name}",
                hint=f"{near_or_all(name, names)}; any other image goes with --engine podman or docker"
                if names
                else "name what runs it: --engine podman or docker",
            )
        return mine
    return [ImageWanted(engine=engine, name=name, boxes=tuple(fleet.boxes))]


def known_boxes(fleet: Fleet, boxes: Collection[str]) -> None:
    """Raises SpecError, with the nearest name, for a box that is not in the file."""
    for box in boxes:
        if box not in fleet.boxes:
            raise SpecError(f"there is no box {box} in fleet.yaml", hint=near_or_all(box, fleet.boxes))


def look_at(subject: Subject, wanted: list[ImageWanted], also: Collection[str] = ()) -> list[Found]:
    """Of each image, what its boxes (and those in ``also``) say of it. Boxes that are away are left out."""

    def mine(box: str) -> list[int]:
        return [number for number, one in enumerate(wanted) if box in one.boxes or box in also]

    def ask(box: Any) -> list[dict[str, Any]]:
        asked = [[wanted[number].engine, wanted[number].reference] for number in mine(box.name)]
        return list(box.call("images_look", asked=asked, timeout=LOOK_LIMIT)) if asked else []

    told = subject.boxes.each(ask)
    found: list[Found] = [{} for _ in wanted]
    for box, answers in told.items():
        for number, answer in zip(mine(box), answers, strict=True):
            found[number][box] = ImageThere.model_validate(answer)
    return found


def disagreements(wanted: ImageWanted, found: Found) -> list[str]:
    """What is not right with an image on its boxes, a sentence each."""
    lines = [f"{box}: {there.problem}" for box, there in found.items() if there.problem]
    lacking = [box for box in wanted.boxes if box in found and not found[box].id and not found[box].problem]
    if lacking:
        pinned = f" ({short(wanted.identity)})" if wanted.identity else ""
        lines.append(f"{', '.join(lacking)}: {wanted.name}{pinned} is not there")
    ids = {box: there.id for box, there in found.items() if there.id}
    if len(set(ids.values())) > 1:
        lines.append(f"not the same: {', '.join(f'{short(one)} on {box}' for box, one in ids.items())}")
    return lines


def prove(subject: Subject, wanted: ImageWanted, found: Found, hear: Callable[[str, Any], None]) -> list[str]:
    """Read the image on every box that has it, and say what is not as its ID says, a sentence each."""

    def ask(box: Any) -> list[str]:
        if not found.get(box.name, ImageThere()).id:
            return []
        told = box.call(
            "image_prove",
            engine=wanted.engine,
            reference=wanted.reference,
            on_event=lambda event: hear(box.name, event),
        )
        return [str(line) for line in told["wrong"]]

    return [f"{box}: {line}" for box, lines in subject.boxes.each(ask).items() for line in lines]


@dataclass(frozen=True)
class Wishes:
    """What the operator said of a transfer: ``limit`` in bytes/s of all boxes together (None: nothing was said)."""

    source: str | None = None
    to: tuple[str, ...] = ()
    limit: float | None = None


def plan_push(subject: Subject, seen: Look, wanted: list[ImageWanted], wishes: Wishes) -> Plan:
    """The plan that brings images to the boxes that lack them. Raises RefusedError where that cannot be done."""
    fleet = subject.fleet
    named = {*wishes.to, *([wishes.source] if wishes.source else [])}
    known_boxes(fleet, named)
    pushes, refused, serving = [], [], set[str]()
    for one, found in zip(wanted, look_at(subject, wanted, named), strict=True):
        source = _source(one, found, wishes.source)
        there = found[source]
        goals = [box for box in (wishes.to or one.boxes) if box != source and found[box].id != there.id]
        refused += [f"{box}: {found[box].problem}" for box in goals if found[box].problem]
        if not goals:
            continue
        if not one.tag and one.identity is None:
            raise RefusedError(
                f"{one.name} is pinned by the digest of a registry, which a copy from box to box does not have; "
                "nothing was changed",
                hint=f"write `image: {one.name.partition('@')[0]}` and `id: {there.id}` into fleet.yaml",
            )
        for box in goals:
            if not found[box].problem and (short_of := missing_room(there.size, found[box])):
                refused.append(f"{box}: {short_of} for {one.name}")
        serving |= set(serving_on(seen.observed, (source, *goals)))
        pushes.append((one, (source, there), goals))
    if refused:
        raise RefusedError("\n".join([*refused, "nothing was sent"]))
    share = share_of(wishes.limit, serving, sum(len(goals) for _, _, goals in pushes))
    steps = [step for push in pushes for step in push_steps(*push, addresses=addresses(fleet), share=share)]
    return staying(
        fleet.fleet,
        fleet.proxy.lead,
        seen,
        PUSH,
        (ROOM, SEND),
        steps,
        sparing(wishes.limit, serving),
        "no engine that serves stops" if steps else "every box has this image",
    )


def _source(wanted: ImageWanted, found: Found, named: str | None) -> str:
    """The box that the image comes from. Raises RefusedError where that is not clear, or there is none."""
    have = {box: there.id for box, there in found.items() if there.id}
    if named is not None:
        if named not in have:
            why = found[named].problem if named in found and found[named].problem else "it is not there"
            raise RefusedError(f"{named} cannot send the image {wanted.name}: {why}; nothing was changed")
        return named
    if not have:
        raise RefusedError(
            f"no box has the image {wanted.name}; nothing was changed",
            hint=f"`{wanted.engine} pull` or `{wanted.engine} load` it on one box, then push it from there",
        )
    if len(set(have.values())) > 1:
        told = ", ".join(f"{box} has {short(identity)}" for box, identity in have.items())
        raise RefusedError(
            f"the image {wanted.name} is not the same on its boxes ({told}); nothing was changed",
            hint="say which box has the right one: --from BOX",
        )
    return next(iter(have))
