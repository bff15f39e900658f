"""Of engines, those that write text: what measures speed of answers, or their quality, asks no other."""

from __future__ import annotations

from collections.abc import Iterable

from fleetctl.errors import RefusedError
from fleetctl.render.release import Engine


def generating(engines: Iterable[Engine]) -> tuple[Engine, ...]:
    """Those that generate. Raises RefusedError where there is none."""
    asked = list(engines)
    found = tuple(engine for engine in asked if engine.task == "generate")
    if not found:
        does = {"embed": "embeds", "rerank": "ranks"}
        told = ", ".join(dict.fromkeys(f"{engine.model} {does.get(engine.task, engine.task)}" for engine in asked))
        raise RefusedError(f"{told}: there are no answers in words to ask for")
    return found
