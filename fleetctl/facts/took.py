"""What engines took the last time, as the moves that ended have measured it. Pure."""

from __future__ import annotations

from typing import Any

from fleetctl.facts.types import Observed


def last_loads(observed: Observed) -> dict[str, float]:
    """Engine → seconds from its start until it answered."""
    return _last("loads", observed)


def last_stops(observed: Observed) -> dict[str, float]:
    """``BOX/UNIT`` → seconds until it was down."""
    return _last("stops", observed)


def last_caches(observed: Observed) -> dict[str, int]:
    """Engine → tokens of cache that it logged when it was last started by a move."""
    return {engine: int(told["tokens"]) for engine, told in _told("caches", observed).items()}


def _last(key: str, observed: Observed) -> dict[str, float]:
    return {name: float(took) for name, took in _told(key, observed).items()}


def _told(key: str, observed: Observed) -> dict[str, Any]:
    """Of each name what the last move that measured it says, from the records with which moves ended."""
    moves = sorted((move for facts in observed.values() for move in facts.moves), key=lambda m: (m.written, m.move))
    found: dict[str, Any] = {}
    for move in moves:
        found.update((move.end or {}).get(key) or {})
    return found
