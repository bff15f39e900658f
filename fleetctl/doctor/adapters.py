"""The family *adapters*: LoRA adapters that a copy, a box or the model lacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fleetctl.doctor.finding import Finding, Kind, Severity
from fleetctl.doctor.scene import Family, Scene
from fleetctl.facts.adapters import LoadedTold
from fleetctl.plan.adapters import behind, engines_asked, newest, taken_names
from fleetctl.render.release import Engine

_SOURCE = "docs/lora.md; vLLM documentation: LoRA adapters"
LACKS = Kind(
    "A01",
    Severity.ERROR,
    "a copy is without a LoRA adapter",
    "an engine that serves and does not list an adapter that the fleet has for its model",
    "The proxy knows the name and sends requests to every copy: this one answers that there is no such model.",
    "fleetctl restart MODEL, where its box has the files; of a pool, systemctl restart UNIT there",
    _SOURCE,
)
BOX = Kind(
    "A02",
    Severity.WARNING,
    "a box lacks LoRA adapters, or has damaged ones",
    "a box whose list is older than that of another, files that are missing or shorter, and bytes that are not those "
    "that were sent",
    "An engine that starts there starts without them, or answers with noise.",
    "fleetctl apply brings what another box has whole",
    _SOURCE,
)
UNUSABLE = Kind(
    "A03",
    Severity.WARNING,
    "a LoRA adapter cannot be used",
    "an adapter of a rank above max_lora_rank, of a model that takes none (any more), or with a name that a model has",
    "It takes room, and whoever asks for it is answered by another model, or not at all.",
    "change loras: of the model, or fleetctl lora remove NAME",
    _SOURCE,
)
KINDS = (LACKS, BOX, UNUSABLE)


def ask(scene: Scene, box: str) -> dict[str, Any] | None:
    """The engines of a box are asked, where there are adapters at all."""
    if not any(newest(scene.observed).adapters.values()):
        return None
    return {"engines": engines_asked(scene.live, box)}


def find(scene: Scene, told: Mapping[str, LoadedTold]) -> Iterator[Finding]:
    """Findings of all boxes, and of the fleet."""
    if any(facts.moving for facts in scene.observed.values()):
        return  # what a push is bringing is on its way
    yield from _copies(scene, told)
    yield from _boxes(scene, told)
    yield from _unusable(scene)


def _copies(scene: Scene, told: Mapping[str, LoadedTold]) -> Iterator[Finding]:
    wanted = newest(scene.observed).adapters
    for engine in scene.live.all_engines:
        box = engine.head.box
        loaded = told[box].loaded.get(engine.head.unit) if box in told else None
        if engine.max_lora_rank is None or loaded is None:
            continue
        without = [
            name
            for name, entry in sorted(wanted.get(engine.model, {}).items())
            if name not in loaded and entry.rank <= engine.max_lora_rank
        ]
        if without:
            there = "fleetctl apply brings the files; " if box in behind(scene.observed) else ""
            yield LACKS.found(
                box,
                engine.head.unit,
                f"{engine.id} is without {', '.join(without)}",
                f"{engine.url}/v1/models: {', '.join(sorted(loaded)) or 'no adapter'}",
                fix=f"{there}{_again(scene, engine)}",
            )


def _again(scene: Scene, engine: Engine) -> str:
    """What starts an engine again."""
    pooled = engine not in scene.live.engines
    return f"systemctl restart {engine.head.unit}" if pooled else f"fleetctl restart {engine.head.box}"


def _boxes(scene: Scene, told: Mapping[str, LoadedTold]) -> Iterator[Finding]:
    late = behind(scene.observed)
    for box, facts in scene.observed.items():
        broken = [f"{name}: {why}" for name, why in sorted(facts.adapters.broken.items())]
        changed = sorted(told[box].changed.items()) if box in told else []
        broken += [f"{name}: {file} is not what was sent" for name, file in changed]
        if box not in late and not broken:
            continue
        fix = "fleetctl apply"
        if changed:
            names = " ".join(name.partition("/")[2] for name, _ in changed)
            fix = f"fleetctl lora remove {names}, then push it again"
        says = broken[0] if broken else "it has not heard of the last change of the adapters"
        yield BOX.found(box, "/var/lib/fleetctl/loras", f"{box}: {says}", *broken[:5], fix=fix)


def _unusable(scene: Scene) -> Iterator[Finding]:
    names = [n for key, model in scene.fleet.models.items() for n in (key, *model.served_as)]
    taken = taken_names(scene.live, names)
    for model, entries in newest(scene.observed).adapters.items():
        loras = scene.fleet.models[model].loras if model in scene.fleet.models else None
        for name, entry in sorted(entries.items()):
            why = None
            if loras is None:
                why = f"fleet.yaml has no loras: for {model}"
            elif entry.rank > loras.max_lora_rank:
                why = f"its rank is {entry.rank}, and {model} takes {loras.max_lora_rank}"
            elif name in taken:
                why = f"its name is {taken[name]}"
            if why is not None:
                yield UNUSABLE.found(None, name, f"{name} cannot be used: {why}", fix=f"fleetctl lora remove {name}")


ADAPTERS = Family("adapters", KINDS, find, LoadedTold, "adapters_look", ask)
