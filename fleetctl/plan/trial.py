"""The step of a move that measures an engine. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fleetctl.plan.draft import Draft, Move, of_engine
from fleetctl.spec.units import gib, parse_duration


def trial(move: Move, free_within: Any = 300.0) -> Iterable[Draft]:
    """The engine that was stopped runs once with a smaller share, out of reach of the proxy. ``free_within``: how long
    its memory may take to be free again afterwards."""
    found = move.difference.trial
    for engine in move.difference.start if found is not None else ():
        assert found is not None
        memory = next((budget.memory for budget in move.target.budgets if budget.box == engine.head.box), 0)
        asked = f"share {found.share:g}" + (f", {gib(found.share * memory)}" if memory else "")
        yield of_engine(
            engine,
            f"{engine.id} starts once outside of the proxy ({asked}), is measured and stopped",
            trial=found.model_dump(mode="json"),
            limit=engine.load_limit,
            stop_limit=engine.stop_limit,
            need=int(engine.head.share * memory),
            free_within=parse_duration(free_within),
        )
