"""The steps of a move that measure an engine under load. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fleetctl.plan.draft import Draft, Move, of_engine
from fleetctl.spec.units import parse_duration


def measure_knee(move: Move) -> Iterable[Draft]:
    """The engine, which nobody else uses, is sent load at one concurrency after another."""
    found = move.difference.measuring
    for engine in move.difference.prove if found is not None and found.knee is not None else ():
        assert found is not None and found.knee is not None
        yield of_engine(
            engine,
            f"measure {engine.id} alone, at 1 to {found.knee.most} requests at once",
            load=found.load,
            knee=found.knee.model_dump(mode="json"),
        )


def try_settings(move: Move, free_within: Any = 300.0) -> Iterable[Draft]:
    """The engine that was stopped starts with one set of values after the other, out of reach of the proxy.
    ``free_within``: how long its memory may take to be free again after each."""
    found = move.difference.measuring
    for engine in move.difference.prove if found is not None and found.settings else ():
        assert found is not None
        words = "; ".join(
            f"{one.name} {', '.join(f'{value:g}' for value in one.candidates)}"
            for one in found.settings
            if one.candidates
        )
        memory = next((budget.memory for budget in move.target.budgets if budget.box == engine.head.box), 0)
        yield of_engine(
            engine,
            f"try {words} on {engine.id}, started outside of the proxy",
            load=found.load,
            settings=[one.model_dump(mode="json") for one in found.settings],
            candidates=[one.model_dump(mode="json") for one in found.candidates],
            concurrency=found.concurrency,
            windows=found.windows,
            usable=found.usable,
            limit=engine.load_limit,
            stop_limit=engine.stop_limit,
            need=int(engine.head.share * memory),
            free_within=parse_duration(free_within),
        )
