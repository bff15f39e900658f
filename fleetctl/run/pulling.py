"""The plan that gets a model from outside of the fleet onto one of its boxes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fleetctl.errors import SpecError
from fleetctl.plan.types import Plan, PlannedStep, Stage
from fleetctl.plan.weights import PULL, Wanted, serving_on, share_of
from fleetctl.run.planning import Look, Subject
from fleetctl.run.staying import staying
from fleetctl.run.weights import wanted_places
from fleetctl.spec.secret import Secret
from fleetctl.spec.units import size

FETCH = Stage(name="fetch", summary="from outside of the fleet onto one box, proven by checksums")
LIMIT = 6 * 3600.0
"""Seconds for one model."""

_HUB_ID = re.compile(r"(?:hf:)?([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?")


def plan_pull(
    subject: Subject, seen: Look, model: str, *, source: str | None, on: str | None, here: bool, limit: float | None
) -> Plan:
    """Fetch a model onto one box (``on``, or the first that needs it).

    A hub id is fetched by the box itself, with the huggingface_hub of the engine's own environment, where it has one,
    and else (or with ``here``) by this machine, which sends it over SSH. For a folder ``source`` says where it is from:
    a folder of this machine or an id of the hub.
    """
    wanted = wanted_places(subject.fleet, [model], [on] if on else [])[0]
    box = subject.boxes[wanted.box]
    users = serving_on(seen.observed, [wanted.box])
    shared = {
        "model": model,
        "place": wanted.place,
        "env": wanted.place.get("env", {}) or _plain(subject, model),
        "secrets": _secrets(subject, model),
        "limit": share_of(limit, users, 1),
    }
    if "repo" in wanted.place and source is not None:
        raise SpecError(
            f"the weights of {model} are the hub id {wanted.place['repo']}, which says where they are from",
            hint="leave --from out, or write a folder as weights: of the model",
        )
    if "repo" in wanted.place:
        name = wanted.name
        if not here and wanted.python and _has_library(box, wanted.python):
            step = _step("pull_weights", wanted, f"{wanted.box} fetches {name} from the hub into its cache", shared)
            step = step.model_copy(update={"params": {**step.params, "python": wanted.python, "limit": LIMIT}})
        else:
            more = {**shared, "repo": wanted.place["repo"], "revision": wanted.place["revision"]}
            said = f"this machine fetches {name} from the hub, and {wanted.box} gets it from here"
            step = _step("upload_weights", wanted, said, more)
    else:
        step = _from(source, wanted, shared)
    return staying(
        subject.fleet.fleet,
        subject.fleet.proxy.lead,
        seen,
        PULL,
        (FETCH,),
        [step],
        [f"`fleetctl weights push {model}` then brings it to the other boxes"] if len(subject.fleet.boxes) > 1 else [],
    )


def _from(source: str | None, wanted: Wanted, shared: dict[str, Any]) -> PlannedStep:
    """The step for weights that are a folder on the box."""
    if source is None:
        raise SpecError(
            f"the weights of {wanted.model} are the folder {wanted.name}: where are they to come from?",
            hint="--from FOLDER of this machine, or --from org/name[@REVISION] of the hub",
        )
    folder = Path(source).expanduser()
    if folder.exists():
        files = [folder] if folder.is_file() else [one for one in folder.rglob("*") if one.is_file()]
        whole = size(sum(one.stat().st_size for one in files))
        said = f"{wanted.box} gets {wanted.name} from {folder} of this machine: {len(files)} files, {whole}"
        more = {**shared, "repo": "", "revision": "", "folder": str(folder.resolve())}
        return _step("upload_weights", wanted, said, more)
    match = _HUB_ID.fullmatch(source)
    if match is None or source.startswith(("/", ".", "~")):
        raise SpecError(
            f"--from {source}: no such folder here, and no id of the hub",
            hint="a folder of this machine, or org/name[@REVISION]",
        )
    said = f"this machine fetches {source} from the hub, and {wanted.box} gets it from here as {wanted.name}"
    return _step("upload_weights", wanted, said, {**shared, "repo": match[1], "revision": match[2] or ""})


def _step(kind: str, wanted: Wanted, said: str, params: dict[str, Any]) -> PlannedStep:
    return PlannedStep(
        id=f"fetch.{kind}.{wanted.box}/{wanted.model}",
        kind=kind,
        stage=FETCH.name,
        box=wanted.box,
        target=wanted.model,
        params=params,
        summary=said,
    )


def _has_library(box: Any, python: str) -> bool:
    return bool(box.call("hub_library", python=python, timeout=90)["there"])


def _secrets(subject: Subject, model: str) -> dict[str, dict[str, Any]]:
    """References of the secrets that the hub asks for: a token."""
    given = subject.fleet.models[model].environment
    token = given.get("HF_TOKEN") or given.get("HUGGING_FACE_HUB_TOKEN")
    return {"HF_TOKEN": token.model_dump(mode="json")} if isinstance(token, Secret) else {}


def _plain(subject: Subject, model: str) -> dict[str, str]:
    given = subject.fleet.models[model].environment
    return {name: value for name, value in given.items() if name.startswith("HF_") and isinstance(value, str)}
