"""What profiles need to know of an engine of the fleet, and what `fleetctl tune` keeps for them on the boxes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fleetctl import __version__
from fleetctl.facts.types import lead_of
from fleetctl.profiles.kinds import BoxSeen, ModelSeen, box_seen, model_seen
from fleetctl.render.candidate import BATCHED, arguments_of, present
from fleetctl.render.engine import Place
from fleetctl.render.release import Engine, Release
from fleetctl.run.planning import Subject
from fleetctl.run.trial import fleet_of

TIME_FOR_KIND = 30.0  # seconds


@dataclass(frozen=True)
class Here:
    """An engine's model and its box, as profiles know them; ``over``: boxes that it runs over."""

    model: ModelSeen
    box: BoxSeen
    over: int


def here(subject: Subject, engine: Engine) -> Here | None:
    """What the engine's box tells; None where it cannot be asked."""
    name = engine.head.box
    if name not in subject.boxes:
        return None
    box = subject.boxes[name]
    kind = box_seen(box.call("box_kind", timeout=TIME_FOR_KIND))
    folder = engine.weights.startswith("/")
    told = box.call("model_kind", path=engine.weights, timeout=TIME_FOR_KIND) if folder else None
    return Here(model_seen(engine.weights, told), kind, len(engine.ranks))


def ran_with(subject: Subject, live: Release, engine: Engine) -> dict[str, Any]:
    """Settings that the engine runs with, as profiles name them; None: not given, the engine's own default."""
    fleet, box = fleet_of(live, subject.fleet), engine.head.box
    boxes = tuple(rank.box for rank in engine.ranks)
    place = Place(live.layout or "", engine.model, box, 0, boxes, engine.port, engine.head.share)
    model, flags = fleet.models[engine.model], arguments_of(fleet, place)
    speculative = model.speculative.model_dump(mode="json") if model.speculative else None
    if speculative is None and "--speculative-config" in flags:
        speculative = _parsed(flags["--speculative-config"])
    batched = present(fleet, place)[BATCHED]
    return {
        "gpu_memory_utilization": engine.head.share,
        "kv_cache_dtype": flags.get("--kv-cache-dtype") or model.kv_cache_dtype,
        "speculative": speculative,
        "batched_tokens": None if batched is None else int(batched),
    }


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        told = json.loads(text)
    except ValueError:
        return None
    known = isinstance(told, dict) and {"method", "num_speculative_tokens"} <= set(told)
    return told if known else None


def keep(
    subject: Subject, live: Release, engine: Engine, seen: Here, kind: str, mix: str, told: Mapping[str, Any], at: float
) -> None:
    """Note what was measured on the box that keeps the journal. ``kind`` is knee or settings; ``told`` has ``answer``,
    ``points``, ``version`` and ``generator``; ``at`` in epoch seconds."""
    runtime = fleet_of(live, subject.fleet).models[engine.model].runtime
    record = {
        "kind": kind,
        "engine": engine.id,
        "box": engine.head.box,
        "model": engine.model,
        "mix": mix,
        "at": round(at, 3),
        "answer": told["answer"],
        "points": told["points"],
        "doubt": list((told.get("generator") or {}).get("why", ())),
        "over": seen.over,
        "settings": ran_with(subject, live, engine),
        "seen": {"model": asdict(seen.model), "box": seen.box.kind.model_dump(mode="json")},
        "versions": {runtime: told.get("version"), "driver": seen.box.driver, "fleetctl": __version__},
    }
    subject.boxes[_lead(subject)].call("tuning_note", record=record)


def kept(subject: Subject) -> list[dict[str, Any]]:
    """All that was noted, oldest first."""
    return list(subject.boxes[_lead(subject)].call("tunings"))


def _lead(subject: Subject) -> str:
    return lead_of({}, subject.fleet.proxy.lead)
