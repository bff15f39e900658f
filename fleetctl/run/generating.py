"""Of engines, those that write text, or that embed: what measures speed or quality of answers asks no other."""

from __future__ import annotations

from collections.abc import Iterable

from fleetctl.errors import RefusedError
from fleetctl.render.release import Engine


def generating(engines: Iterable[Engine]) -> tuple[Engine, ...]:
    """Those that generate. Raises RefusedError where there is none."""
    return doing(engines, "generate")


def doing(engines: Iterable[Engine], task: str) -> tuple[Engine, ...]:
    """Those with a task, generate or embed. Raises RefusedError where there is none."""
    asked = list(engines)
    found = tuple(engine for engine in asked if engine.task == task)
    if not found and task == "embed":
        told = ", ".join(dict.fromkeys(engine.model for engine in asked))
        raise RefusedError(f"{told} embeds nothing", hint="the mixes chat, agent and email are for what generates")
    if not found:
        does = {"embed": "embeds", "rerank": "ranks"}
        told = ", ".join(dict.fromkeys(f"{engine.model} {does.get(engine.task, engine.task)}" for engine in asked))
        hint = "`fleetctl bench MODEL --mix embeddings` measures a model that embeds"
        raise RefusedError(f"{told}: there are no answers in words to ask for", hint=hint)
    return found
