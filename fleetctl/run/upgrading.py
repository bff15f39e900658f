"""A model from one build to another: what is asked for, the file that says it, and the plan that does it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from fleetctl.engine.runtimes.known import RUNTIMES
from fleetctl.errors import RefusedError, SpecError
from fleetctl.facts.types import lead_of
from fleetctl.plan.types import Plan
from fleetctl.render.release import Release
from fleetctl.run.planning import Books, Look, Subject, live_release, plan_cutover, same_on_boxes, target_of
from fleetctl.run.planning import wanted_release as release_of
from fleetctl.run.rolling import layout_to_apply
from fleetctl.spec.edit_launch import with_launch
from fleetctl.spec.fleet import Fleet
from fleetctl.spec.fleet_model import Container, Program
from fleetctl.spec.load import parse_fleet
from fleetctl.spec.problems import near_or_all

_IMAGE = re.compile(r"[a-z0-9][\w.-]*(?::\d+)?/\S+|[a-z0-9][\w./-]*(?::[\w.-]+|@sha256:[0-9a-f]+)")


def launch_for(fleet: Fleet, model: str, to: str) -> dict[str, Any]:
    """What ``launch:`` of a model has to be for a build: one of ``builds:`` by its name, a path, or an image.

    Raises SpecError, with the nearest name, for what is none of these.
    """
    if model not in fleet.models:
        raise SpecError(f"there is no model {model}", hint=near_or_all(model, fleet.models))
    if to in fleet.builds:
        return {"build": to}
    current, runtime = fleet.launch(model), RUNTIMES[fleet.models[model].runtime]
    if to.startswith("/"):
        if not to.strip("/") or not to.isprintable():
            raise SpecError(f"--to {to!r} is no path of an environment or of a program")
        program = isinstance(current, Program) or (not runtime.packages and to.rpartition("/")[2] == runtime.program[0])
        return {"program" if program else "venv": to.rstrip("/")}
    if isinstance(current, Container) and _IMAGE.fullmatch(to):
        given = current.model_dump(mode="json", exclude_unset=True, exclude={"id"})  # that was the old image's
        return {**given, "image": to}
    if _IMAGE.fullmatch(to):
        raise SpecError(
            f"{model} is not launched from an image now, and Docker and Podman are started in different ways",
            hint=f"write it into fleet.yaml: builds: {{NAME: {{image: {to}, engine: podman}}}}, and use --to NAME",
        )
    known = near_or_all(to, fleet.builds) if fleet.builds else "builds: of fleet.yaml gives builds names"
    raise SpecError(f"there is no build {to}; it is no path and no image either", hint=known)


def upgraded(subject: Subject, model: str, to: str, source: str) -> Subject:
    """The same fleet with a file in which the model is launched from another build. Raises SpecError."""
    text = with_launch(subject.text, model, launch_for(subject.fleet, model, to), source)
    return replace(subject, fleet=parse_fleet(text, source), text=text)


def plan_upgrade(before: Subject, after: Subject, seen: Look, books: Books) -> Plan:
    """The plan that brings the new build to the live layout, one copy at a time where possible.

    Raises RefusedError when fleet.yaml has other changes that are not on the boxes: what then fails a gate would be
    taken for the build's fault.
    """
    layout = layout_to_apply(before, seen.observed)
    wanted = release_of(after, layout)
    plan = plan_cutover(after, wanted, seen, books, operation="upgrade")
    live = live_release(seen.observed, lead_of(seen.observed, before.fleet.proxy.lead), before.fleet.fleet)
    was = target_of(before, release_of(before, layout), seen.observed)
    if not plan.nothing_to_do() and not same_on_boxes(live, was) and not same_on_boxes(live, plan.release):
        raise RefusedError(
            "fleet.yaml has other changes that are not on the boxes yet; nothing was changed",
            hint="`fleetctl apply` brings them there first, so that the upgrade is about the build alone",
        )
    return plan


def has_build(plan: Plan, after: Subject, model: str) -> bool:
    """A plan brings a model to the build that it has in this file: to be told from the upgrade to another one."""
    wanted = release_of(after, plan.to_layout or "") if plan.to_layout in after.fleet.layouts else None
    return wanted is not None and _builds(wanted, model) == _builds(plan.release, model)


def _builds(release: Release, model: str) -> set[tuple[object, ...]]:
    return {
        (engine.binary, engine.image, engine.image_reference if engine.image else None)
        for engine in release.all_engines
        if engine.model == model
    }
