"""Where the page cache may be dropped before an engine starts. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from fleetctl.plan.draft import Draft, Move, on_box
from fleetctl.spec.units import gib


def drop_page_cache(move: Move) -> Iterable[Draft]:
    """On boxes with ``page_cache: drop``, for what starts there: whether it has to be is seen on the box."""
    for name, box in move.difference.boxes.items():
        budget = next((budget for budget in move.target.budgets if budget.box == name), None)
        if budget is None or not budget.drop_page_cache or not box.start:
            continue
        need = int(sum(rank.share for _, rank in box.start.values()) * budget.memory)
        told = f"drop the page cache of {name} if less than {gib(need)} are free without it"
        yield on_box(name, told, need=need)
