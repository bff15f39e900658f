"""The plan that removes weights which no layout and no generation that is kept uses."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from fleetctl.errors import RefusedError, SpecError
from fleetctl.plan.types import Plan, PlannedStep, Stage
from fleetctl.plan.weights import PRUNE, place_of
from fleetctl.render.layout import render_layout
from fleetctl.render.release import Release
from fleetctl.run.planning import Look, Subject
from fleetctl.run.staying import staying
from fleetctl.run.weights import LOOK_LIMIT, wanted_places
from fleetctl.spec.units import size

ASIDE = Stage(name="aside", summary="where nobody finds them; until here all comes back")
REMOVE = Stage(name="remove", summary="for good")
Kept = dict[str, list[dict[str, Any]]]
"""Box → what it says of weights that may go (:func:`fleetctl.onbox.weightsprune.weights_kept`)."""


def kept_on(subject: Subject, seen: Look) -> Kept:
    """What lies on each box, and what of it is needed by which layout or generation."""
    layouts = [(f"layout {name}", render_layout(subject.fleet, name)) for name in subject.fleet.layouts]
    needed: dict[str, list[dict[str, Any]]] = {box: [] for box in subject.boxes}
    for why, release in [*layouts, *_generations(subject, seen)]:
        for engine in release.all_engines:
            place = place_of(engine)
            for rank in engine.ranks:
                if place is not None and rank.box in needed:
                    needed[rank.box].append({"place": place, "why": f"{why} ({engine.model})"})
    stagings: dict[str, list[dict[str, Any]]] = {box: [] for box in subject.boxes}
    for one in wanted_places(subject.fleet):
        stagings[one.box].append(one.place)
    return subject.boxes.each(
        lambda box: list(
            box.call("weights_kept", needed=needed[box.name], stagings=stagings[box.name], timeout=LOOK_LIMIT)
        )
    )


def _generations(subject: Subject, seen: Look) -> Iterable[tuple[str, Release]]:
    """The releases of all generations that some box keeps."""
    done: set[int] = set()
    for box, facts in seen.observed.items():
        for number in facts.generations:
            if number not in done and (told := subject.boxes[box].call("generation_read", number=number)) is not None:
                done.add(number)
                yield f"generation {number}", Release.model_validate(told["release"])


def plan_prune(subject: Subject, seen: Look, names: Collection[str], *, needed: bool) -> Plan:
    """Remove what nothing uses of what fleetctl put on the boxes; of other revisions in a hub's cache those named.

    ``names`` are folders, ids or revisions (``org/name@COMMIT``); with ``needed`` also what is needed, if it is named.
    Raises SpecError for a name of which no box has anything, RefusedError for one that is needed.
    """
    kept = kept_on(subject, seen)
    steps: list[PlannedStep] = []
    held: list[str] = []
    for name in names:
        if not any(_is(one, name) for ones in kept.values() for one in ones):
            known = sorted({label(one) for ones in kept.values() for one in ones})
            raise SpecError(
                f"no box has weights {name} that fleetctl put there, nor such a revision in a hub's cache",
                hint="there are " + ", ".join(known) if known else "`fleetctl weights status` shows what is there",
            )
    for box, ones in kept.items():
        for one in ones:
            named = any(_is(one, name) for name in names)
            if names and not named:
                continue
            if one["needed"] and not (needed and named):
                held += [f"{box}: {label(one)} is needed by {', '.join(one['needed'])}"] if named else []
                continue
            if not named and not one["by"]:
                continue  # a revision that somebody else fetched
            steps += _steps(box, one, len(steps) // 2 + 1)
    if held:
        raise RefusedError(
            "\n".join([*held, "nothing was removed"]), hint="--needed removes them all the same; the layout fails then"
        )
    aside = tuple(step.id for step in steps if step.kind == "aside_weights")
    steps = [step.model_copy(update={"after": aside}) if step.kind == "delete_weights" else step for step in steps]
    return staying(
        subject.fleet.fleet,
        subject.fleet.proxy.lead,
        seen,
        PRUNE,
        (ASIDE, REMOVE),
        steps,
        why="no engine that serves stops" if steps else "nothing that fleetctl put on a box is unused",
    )


def label(one: dict[str, Any]) -> str:
    """How weights are named to be removed."""
    return f"{one['repo']}@{one['commit']}" if one["repo"] else str(one["key"])


def _is(one: dict[str, Any], name: str) -> bool:
    repo, _, commit = name.partition("@")
    if one["repo"] and repo == one["repo"]:
        return not commit or one["commit"].startswith(commit)
    return bool(name == one["key"])


def _steps(box: str, one: dict[str, Any], number: int) -> list[PlannedStep]:
    what = f"what {one['by']} left of {one['key']}" if one["staging"] else label(one)
    since = f", {one['by']}" if one["by"] and not one["staging"] else ""
    said = f"{what} on {box} ({size(one['bytes'])}{since})"
    return [
        PlannedStep(
            id=f"{stage.name}.{kind}.{box}.{number}",
            kind=kind,
            stage=stage.name,
            box=box,
            target=label(one),
            params={"one": one},
            summary=f"{verb} {said}",
        )
        for kind, stage, verb in (("aside_weights", ASIDE, "put aside"), ("delete_weights", REMOVE, "remove"))
    ]
