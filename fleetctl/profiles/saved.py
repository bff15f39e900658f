"""From what `fleetctl tune` measured in a fleet to profiles that can be shared: no box, no address, no path. Pure."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleetctl.errors import RefusedError
from fleetctl.profiles.kinds import ModelSeen
from fleetctl.profiles.profile import (
    BoxKind,
    Evidence,
    Measurement,
    Memory,
    ModelKind,
    Profile,
    Settings,
)
from fleetctl.spec.fleet_model import Measured, Speculative

Record = Mapping[str, Any]
_KEYS = ("gpu_memory_utilization", "kv_cache_dtype", "speculative", "batched_tokens")
_NAMES = {"gpu_memory_utilization": "memory_share", "batched_tokens": "batched_tokens"}
_NO_KNEE = "limit of the engine"
_ROUGH = 2**31  # bytes: boxes of one kind differ by less in what firmware leaves of their memory


@dataclass(frozen=True)
class Saved:
    """A profile and what was left out of it."""

    profile: Profile
    notes: tuple[str, ...]


def saved(
    records: Sequence[Record], measured: Mapping[str, Mapping[str, Measured]], *, name: str | None = None
) -> list[Saved]:
    """One profile for each model on each kind of box, from the last record of each copy and mix.

    ``measured`` is what fleet.yaml has of memory: model → box → figures. Raises RefusedError where there is nothing.
    """
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        kind = BoxKind.model_validate(record["seen"]["box"])
        key = (record["model"], record["over"], kind.gpu, kind.gpus, kind.machine, round(kind.memory / _ROUGH))
        groups.setdefault(key, []).append(record)
    found = [one for group in groups.values() if (one := _of_group(group, measured, name)) is not None]
    if not found:
        raise RefusedError(
            "there is no knee that was measured: nothing to save",
            hint="`fleetctl tune` finds one and keeps it; the engine's own limit is none",
        )
    found = _apart(found)
    if name is not None and len(found) > 1:
        kinds = ", ".join(one.profile.profile for one in saved(records, measured))
        raise RefusedError(f"there are {len(found)} of them ({kinds}), and --name names one", hint="name the model")
    return found


def _apart(found: Sequence[Saved]) -> list[Saved]:
    """The same, each with a name of its own: the second of a name ends with -2, and so on."""
    told: list[Saved] = []
    for one in found:
        before = sum(other.profile.profile == one.profile.profile for other in found[: len(told)])
        name = f"{one.profile.profile}-{before + 1}" if before else one.profile.profile
        told.append(Saved(one.profile.model_copy(update={"profile": name}), one.notes))
    return told


def understood(record: Record) -> bool:
    """Whether a profile can be made of what a box has kept: not of what is damaged, or of another version's form."""
    try:
        texts = [record[key] for key in ("model", "box", "mix", "kind")]
        BoxKind.model_validate(record["seen"]["box"])
        hash((record["over"], *texts))
        if record["kind"] == "settings":
            _ran_with("batched_tokens", record["answer"]["chosen"].get("batched_tokens"), [record])
            return all("setting" in one for one in record["answer"]["verdicts"])
        _of_group([record], {}, None)
    except RefusedError:
        return True  # it is understood, and why it makes no profile is to be said
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, OSError):
        return False
    return all(isinstance(text, str) for text in texts)


def _of_group(
    group: Sequence[Record], measured: Mapping[str, Mapping[str, Measured]], name: str | None
) -> Saved | None:
    """The profile of one model on one kind of box; None where no knee was measured."""
    last: dict[tuple[str, str], Record] = {}
    for record in sorted((one for one in group if one["kind"] == "knee"), key=lambda one: float(one["at"])):
        last[record["box"], record["mix"]] = record
    knees = [record for record in last.values() if record["answer"]["kind"] != _NO_KNEE]
    limits = sorted({record["mix"] for record in last.values()} - {record["mix"] for record in knees})
    notes = [f"mix {mix}: the engine's own limit was found and no knee, and is left out" for mix in limits]
    if not knees:
        return None
    newest = max(knees, key=lambda record: float(record["at"]))
    seen = ModelSeen(**newest["seen"]["model"])
    model = _model(seen)
    ran, tried = newest["settings"], [one for one in group if one["kind"] == "settings"]
    concurrency, evidence = _curves(knees)
    given = {key: ran[key] for key in _KEYS if ran.get(key) is not None}
    if any(isinstance(value, str) and value.startswith(("/", "~")) for value in given.get("speculative", {}).values()):
        del given["speculative"]
        notes.append("speculative: names a folder of this fleet, and is left out")
    evidence += [_ran_with(key, value, tried) for key, value in given.items()]
    boxes = {record["box"] for record in group}
    memory = next((one for box, one in measured.get(newest["model"], {}).items() if box in boxes), None)
    if memory is not None:
        evidence.append(
            Evidence(
                about=("memory",),
                how="calibrate",
                told=f"`fleetctl capacity calibrate` on {memory.at}, with {memory.batched_tokens} batched tokens",
            )
        )
    kind = BoxKind.model_validate(newest["seen"]["box"])
    profile = Profile(
        profile=name or _name(kind, seen, newest["over"]),
        date=_day(newest),
        model=model,
        box=kind,
        over=newest["over"],
        versions={key: str(value) for key, value in newest["versions"].items() if value},
        settings=Settings(concurrency=concurrency, **_typed(given)),
        memory=None
        if memory is None
        else Memory(weights=memory.weights, overhead=memory.overhead, batched_tokens=memory.batched_tokens),
        evidence=tuple(evidence),
    )
    return Saved(profile, tuple(notes))


def _model(seen: ModelSeen) -> ModelKind:
    """How such a model is known again: by its hub id, or by its files. Never by a folder's name."""
    names = () if seen.name.startswith("/") else (seen.name.rpartition("/")[2],)
    if not names and not seen.config:
        raise RefusedError(
            "nothing is known of the model but its folder: there is no config.json in it, and without one no profile "
            "can say which model it is of"
        )
    size = seen.size if seen.config and seen.size else None
    return ModelKind(
        names=names,
        config=dict(seen.config),
        quantization=seen.quantization or None,
        weights=size if not names else None,
    )


def _curves(knees: Iterable[Record]) -> tuple[dict[str, int], list[Evidence]]:
    """Mix → the smallest answer of the copies, as `tune --write` takes it; and the curve that it is from."""
    chosen: dict[str, Record] = {}
    for record in knees:
        known = chosen.get(record["mix"])
        if known is None or record["answer"]["concurrency"] < known["answer"]["concurrency"]:
            chosen[record["mix"]] = record
    evidence = []
    for mix, record in chosen.items():
        answer = record["answer"]
        told = f"`fleetctl tune` on {_day(record)}, one copy alone: {answer['kind']}: {answer['why']}"
        told += f"; {answer['sure']:.0%} of what is possible after {len(record['points'])} measurements agrees"
        if record.get("doubt"):
            told += f"; what measured it did not keep up: {', '.join(record['doubt'])}"
        points = tuple(_point(point) for point in record["points"])
        evidence.append(Evidence(about=(f"concurrency.{mix}",), how="tune", told=told, points=points))
    return {mix: int(record["answer"]["concurrency"]) for mix, record in chosen.items()}, evidence


def _point(point: Record) -> Measurement:
    return Measurement(
        concurrency=point["concurrency"],
        tokens_per_second=round(point["throughput"], 2),
        first_token=_rounded(point.get("ttft")),
        whole_answer=_rounded(point.get("total")),
        requests=point.get("requests"),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _ran_with(key: str, value: Any, tried: Sequence[Record]) -> Evidence:
    """Where a setting is from: what it was tried against, or that nothing else was."""
    name = "speculative_tokens" if key == "speculative" else _NAMES.get(key)
    number = value["num_speculative_tokens"] if key == "speculative" else value
    for record in sorted(tried, key=lambda one: -float(one["at"])):
        verdicts = [one for one in record["answer"]["verdicts"] if one["setting"] == name]
        if verdicts and record["answer"]["chosen"].get(name) == number:
            said = "; ".join(f"{one['value']:g}: {one['says']}{_change(one)}" for one in verdicts)
            told = f"`fleetctl tune --settings` on {_day(record)}, mix {record['mix']}: {said}"
            return Evidence(about=(key,), how="tune", told=told)
    told = "what the engine ran with while it was measured; nothing else was tried"
    return Evidence(about=(key,), how="tune", told=told)


def _change(verdict: Record) -> str:
    change = verdict.get("change")
    return "" if change is None else f" ({change[0]:+.1%}, 95 %: {change[1]:+.1%} to {change[2]:+.1%})"


def _typed(given: Mapping[str, Any]) -> dict[str, Any]:
    values = dict(given)
    if "speculative" in values:
        values["speculative"] = Speculative.model_validate(values["speculative"])
    return values


def _day(record: Record) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(float(record["at"])))


def _name(kind: BoxKind, seen: ModelSeen, over: int) -> str:
    what = str(seen.config.get("model_type", "model")) if seen.name.startswith("/") else seen.name.rpartition("/")[2]
    boxes = f"{kind.gpu or f'cpu-{kind.machine}'}{f'x{over}' if over > 1 else ''}"
    words = f"{boxes} {what} {seen.quantization}"
    return re.sub(r"[^a-z0-9.]+", "-", words.lower()).strip("-.")[:80]
