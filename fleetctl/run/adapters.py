"""LoRA adapters, from folders and facts to a plan: what is wrong with one is said before any copy is touched."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fleetctl.capacity.adapter import Base, doubts, faults, rank_of
from fleetctl.capacity.config import quant_method
from fleetctl.checkpoint.adapter import Local, find_adapters, read_adapter
from fleetctl.checkpoint.sent import Sent
from fleetctl.checkpoint.source import read_files
from fleetctl.engine.runtimes.command import served_names
from fleetctl.errors import RefusedError, SpecError
from fleetctl.facts.adapters import AdaptersFacts
from fleetctl.plan.adapters import PUSH, REMOVE, NewAdapter, newest, push_steps, remove_steps, taken_names
from fleetctl.plan.types import Plan
from fleetctl.remote.errors import OpFailed
from fleetctl.render.release import Release
from fleetctl.run.journal import whoami
from fleetctl.run.planning import Look, Subject
from fleetctl.run.rolling import live_in
from fleetctl.run.staying import staying
from fleetctl.spec.fleet import Fleet
from fleetctl.spec.problems import near_or_all

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
TIME_FOR_HEADERS = 60.0  # seconds


@dataclass(frozen=True)
class Offered:
    """An adapter as it was read, and the name it is to have; what could not be read at all has only the ``fault``."""

    name: str
    folder: Path
    local: Local | None = None
    fault: str = ""


def offered(folders: Sequence[Path], name: str | None) -> list[Offered]:
    """Read the adapters in folders. Raises SpecError where there is none, or ``name`` is given for several."""
    found = [one for folder in folders for one in find_adapters(folder)]
    if name is not None and len(found) > 1:
        told = ", ".join(one.name for one in found)
        raise SpecError(
            f"--name is for one adapter, and these are {len(found)}: {told}",
            hint="leave it out: each has the name of its folder",
        )
    made = []
    for folder in found:
        called = name or folder.resolve().name
        try:
            made.append(Offered(called, folder, read_adapter(folder)))
        except SpecError as error:
            made.append(Offered(called, folder, fault=error.message + (f"; {error.hint}" if error.hint else "")))
    return made


def model_for(fleet: Fleet, model: str | None) -> str:
    """The model that takes the adapters: the one named, or the only one that takes any. Raises SpecError."""
    takes = [name for name, one in fleet.models.items() if one.loras is not None]
    if model is None and len(takes) == 1:
        return takes[0]
    if model is not None and model not in fleet.models:
        raise SpecError(f"there is no model {model}", hint=near_or_all(model, takes or fleet.models))
    if not takes:
        raise SpecError(
            "no model of the fleet takes adapters",
            hint="write `loras: {}` for the model into fleet.yaml, then `fleetctl apply`",
        )
    if model is None:
        raise SpecError(f"{', '.join(takes)} take adapters", hint=f"say which: --model {takes[0]}")
    if model not in takes:
        raise SpecError(
            f"{model} takes no adapters",
            hint=f"{', '.join(takes)} can; or write `loras: {{}}` for it into fleet.yaml, then `fleetctl apply`",
        )
    return model


def plan_push(subject: Subject, seen: Look, new: Sequence[Offered], model: str, at: float) -> Plan:
    """The plan that brings adapters to every copy. ``at`` is the time that is noted, in epoch seconds.

    Raises RefusedError with all that is wrong with any of them; one that the fleet has already is left out.
    """
    fleet, live = subject.fleet, live_in(subject, seen)
    rank = _rank_taken(fleet, live, model)
    base = _base(subject, live, model)
    there = newest(seen.observed)
    reasons, notes, wanted = list[str](), list[str](), list[NewAdapter]()
    for one in new:
        wrong = _name_faults(one, new, model, fleet, live, there)
        if one.local is None:
            wrong.append(one.fault)
        else:
            try:
                wrong += faults(one.local.adapter, base, rank)
                notes += [
                    f"{note}; {model} serves {fleet.models[model].weights}"
                    for note in doubts(one.local.adapter, [fleet.models[model].weights, model])
                ]
            except SpecError as error:
                wrong.append(error.message)
        reasons += [f"{one.name}: {reason}" for reason in wrong]
        if wrong or one.local is None:
            continue
        if _has(there, model, one):
            notes.append(f"{one.name} is there already, the very same")
        else:
            files = one.local.files
            wanted.append(
                NewAdapter(
                    model, one.name, one.local.digest, files, rank_of(one.local.adapter), str(one.folder.resolve())
                )
            )
    if reasons:
        raise RefusedError("refused; no copy was touched:\n" + "\n".join(f"- {reason}" for reason in reasons))
    if not base.matrices:
        notes.append(f"what matrices {model} has is not known here ({base.where}): its shapes are left to the engines")
    if not any(engine.model == model for engine in live.all_engines):
        notes.append(f"no copy of {model} is in {live.layout}: they are loaded when one starts")
    steps = push_steps(wanted, live, seen.observed, by=whoami(), at=at) if wanted else ()
    return staying(fleet.fleet, fleet.proxy.lead, seen, "lora push", PUSH, steps, tuple(notes))


def plan_remove(subject: Subject, seen: Look, names: Sequence[str]) -> Plan:
    """The plan that takes adapters from every copy. Raises SpecError, with the nearest name, where there is none."""
    fleet, live = subject.fleet, live_in(subject, seen)
    there = {name: model for model, entries in newest(seen.observed).adapters.items() for name in entries}
    for name in names:
        if name not in there:
            raise SpecError(f"there is no adapter {name}", hint=near_or_all(name, there) if there else "there is none")
    chosen = [(there[name], name) for name in dict.fromkeys(names)]
    return staying(
        fleet.fleet, fleet.proxy.lead, seen, "lora remove", REMOVE, remove_steps(chosen, live, seen.observed)
    )


def _rank_taken(fleet: Fleet, live: Release, model: str) -> int:
    """The highest rank that every copy takes. RefusedError where one runs that takes none."""
    loras = fleet.models[model].loras
    assert loras is not None  # model_for has seen to it
    ranks = [engine.max_lora_rank for engine in live.all_engines if engine.model == model]
    if None in ranks:
        raise RefusedError(
            f"{model} was started without loras:; no copy was touched",
            hint="`fleetctl apply` starts it with what fleet.yaml says, one copy at a time",
        )
    return min([rank for rank in ranks if rank is not None], default=loras.max_lora_rank)


def _name_faults(
    one: Offered, new: Sequence[Offered], model: str, fleet: Fleet, live: Release, there: AdaptersFacts
) -> list[str]:
    found = []
    if not NAME.fullmatch(one.name):
        found.append(
            "no name for one: letters, digits and . _ - (at most 64, a letter or digit first); --name gives another"
        )
    if sum(other.name == one.name for other in new) > 1:
        found.append("two of these have this name")
    served = [name for key, each in fleet.models.items() for name in (key, *served_names(key, each))]
    taken = taken_names(live, served)
    if one.name in taken:
        found.append(f"that is {taken[one.name]}: clients could not tell them apart")
    for other, entries in there.adapters.items():
        if one.name in entries and not (other == model and _has(there, model, one)):
            what = "with other content" if other == model else f"of {other}"
            found.append(f"there is one of this name {what}: take another, or `fleetctl lora remove {one.name}` first")
    return found


def _has(there: AdaptersFacts, model: str, one: Offered) -> bool:
    entry = there.adapters.get(model, {}).get(one.name)
    return entry is not None and one.local is not None and entry.digest == one.local.digest


def _base(subject: Subject, live: Release, model: str) -> Base:
    """The model's matrices, from its files on a box; without any where they cannot be read."""
    weights = subject.fleet.models[model].weights
    boxes = [engine.head.box for engine in live.all_engines if engine.model == model]
    if not weights.startswith("/") or not boxes:
        return Base(weights)
    try:
        told = subject.boxes[boxes[0]].call("checkpoint_files", path=weights, timeout=TIME_FOR_HEADERS)
        read = read_files(Sent(f"{boxes[0]}:{weights}", told))
    except OpFailed as failure:
        return Base(f"{boxes[0]}:{weights}: {failure.reason}")
    except SpecError as error:
        return Base(error.message)
    return Base(read.where, tuple(read.tensors), quant_method(read.config))
