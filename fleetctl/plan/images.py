"""Container images of a move: every box has the right one before anything is stopped. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fleetctl.facts.types import ImageFacts, Observed
from fleetctl.plan.difference import Difference
from fleetctl.plan.draft import Draft, Move
from fleetctl.render.release import Engine, Release
from fleetctl.spec.units import parse_duration


@dataclass(frozen=True)
class Wanted:
    """An image that engines of a release are started from, and the boxes that have such an engine."""

    program: str
    name: str
    reference: str
    boxes: tuple[str, ...]

    @property
    def pinned(self) -> bool:
        """It cannot be another one on another box: it is named by its ID or by a registry's digest."""
        return self.reference != self.name or "@sha256:" in self.name


def wanted_images(release: Release) -> list[Wanted]:
    """The images of a release."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for engine in release.all_engines:
        if engine.image is not None:
            boxes = found.setdefault((*engine.image, engine.image_reference), [])
            boxes += [rank.box for rank in engine.ranks if rank.box not in boxes]
    return [Wanted(*key, tuple(boxes)) for key, boxes in found.items()]


def short(identity: str) -> str:
    """An image's ID as short as docker and podman show it."""
    return identity.removeprefix("sha256:")[:12]


def _there(image: Wanted, observed: Observed) -> dict[str, str]:
    """Box → ID of the image that it has."""
    facts = {box: observed[box].images.get(image.reference) for box in image.boxes if box in observed}
    return {box: one.id for box, one in facts.items() if one is not None and one.id}


def _differ(image: Wanted, there: dict[str, str]) -> str:
    told = ", ".join(f"{box} has {short(identity)}" for box, identity in there.items())
    first, *others = there
    return (
        f"the image {image.name} is not the same on its boxes: {told}; `fleetctl images push {image.name} --from "
        f"{first} {' '.join(others)}` makes them the same, and id: beside image: keeps them so"
    )


def _starts(image: Wanted, difference: Difference) -> bool:
    wanted = (image.program, image.name)
    lodging = (engine for box in difference.boxes.values() for engine, _ in box.lodging.values())
    return any(engine.image == wanted for engine in (*difference.start, *lodging))


def image_refusals(target: Release, observed: Observed, difference: Difference, *, lenient: bool) -> Iterable[str]:
    """Boxes that cannot run containers, or, unless ``lenient``, have different images of one name."""
    for image in wanted_images(target):
        if not _starts(image, difference):
            continue
        for box in image.boxes:
            facts = observed[box].images.get(image.reference)
            if facts is not None and facts.problem:
                yield f"{box}: {facts.problem}: {image.program} has to run there, for the image {image.name}"
        there = _there(image, observed)
        if not lenient and len(set(there.values())) > 1:
            yield _differ(image, there)


def image_warnings(target: Release, observed: Observed, difference: Difference, *, lenient: bool) -> list[str]:
    """Images that a box has not yet, and where that is no reason to refuse those that are not the same."""
    found = []
    for image in wanted_images(target):
        if not _starts(image, difference):
            continue
        there = _there(image, observed)
        if lenient and len(set(there.values())) > 1:
            found.append(_differ(image, there))
        lacking = [box for box in image.boxes if _lacks(observed[box].images.get(image.reference))]
        if lacking:
            found.append(
                f"{', '.join(lacking)}: the image {image.name} is not there and is pulled from its registry"
                + (f"; `fleetctl images push {image.name}` copies it from {next(iter(there))}" if there else "")
            )
    return found


def other_builds(target: Release, observed: Observed, generation: int) -> list[str]:
    """Images that are not what an earlier generation was made with: their names were given to others meanwhile."""
    found = []
    for image in wanted_images(target):
        for box in image.boxes:
            noted = ((observed[box].generations.get(generation) or {}).get("builds") or {}).get(image.reference)
            then = _with_prefix(str((noted or {}).get("digest") or ""))
            facts = observed[box].images.get(image.reference)
            if then and facts is not None and facts.id not in ("", then):
                found.append(
                    f"{box}: generation {generation} was made with {short(then)} as {image.name}, and that is "
                    f"{short(facts.id)} now; `{image.program} tag {short(then)} {image.name}` there gives the name back"
                )
    return found


def _with_prefix(identity: str) -> str:
    """Generations of earlier versions note what podman says, without sha256:."""
    return identity if not identity or identity.startswith("sha256:") else f"sha256:{identity}"


def _lacks(facts: ImageFacts | None) -> bool:
    return facts is not None and not facts.id and not facts.problem


def have_image(move: Move, limit: Any = 3600.0) -> Iterable[Draft]:
    """Container images that a box has not are pulled."""
    for name, box in move.difference.boxes.items():
        images = sorted({_of(engine) for engine, _ in box.coming.values() if engine.image})
        for engine, image, reference in images:
            pinned = f" ({short(reference)})" if reference != image else ""
            yield Draft(
                name,
                f"{name}/{image}",
                f"{name} has the image {image}{pinned} (or pulls it)",
                frozenset({name}),
                {"engine": engine, "image": image, "reference": reference, "limit": parse_duration(limit)},
            )


def try_container(move: Move) -> Iterable[Draft]:
    """The container of each engine that is to start can be made on its box, without starting the engine."""
    for name, box in move.difference.boxes.items():
        for unit, (engine, rank) in box.coming.items():
            if rank.container is not None and engine.image is not None:
                yield Draft(
                    name,
                    f"{name}/{engine.model}",
                    f"{engine.image[0]} on {name} makes the container of {unit}, and removes it",
                    frozenset({name}),
                    {"words": list(rank.container.words), "folders": list(rank.container.folders)},
                )


def _of(engine: Engine) -> tuple[str, str, str]:
    assert engine.image is not None
    return (*engine.image, engine.image_reference)


def same_image(move: Move) -> Iterable[Draft]:
    """A name that could be another image on another box is the same one on all."""
    for image in wanted_images(move.target):
        if len(image.boxes) > 1 and not image.pinned and not move.lenient and _starts(image, move.difference):
            yield Draft(
                image.boxes[0],
                image.name,
                f"the image {image.name} is the same on {', '.join(image.boxes)}",
                frozenset(image.boxes),
                {"engine": image.program, "image": image.name, "boxes": list(image.boxes)},
            )
