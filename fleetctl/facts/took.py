"""How long engines took the last time, as the moves that ended have measured it. Pure."""

from __future__ import annotations

from fleetctl.facts.types import Observed


def last_loads(observed: Observed) -> dict[str, float]:
    """Engine → seconds from its start until it answered."""
    return _last("loads", observed)


def last_stops(observed: Observed) -> dict[str, float]:
    """``BOX/UNIT`` → seconds until it was down."""
    return _last("stops", observed)


def _last(key: str, observed: Observed) -> dict[str, float]:
    moves = sorted((move for facts in observed.values() for move in facts.moves), key=lambda m: (m.written, m.move))
    found: dict[str, float] = {}
    for move in moves:
        found.update({name: float(took) for name, took in ((move.end or {}).get(key) or {}).items()})
    return found
