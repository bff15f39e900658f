"""What the expansion of a playbook works from, and a step before its place among the others is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fleetctl.facts.types import Observed
from fleetctl.plan.difference import Difference
from fleetctl.render.release import Engine, Release


@dataclass(frozen=True)
class Move:
    """What the expansion works from."""

    source: Release
    target: Release
    observed: Observed
    difference: Difference
    generation: int | None
    lead: str
    by: str = ""
    limit: float | None = None
    """Seconds that running requests get; None: what the proxy's settings say."""
    turn: Engine | None = None
    """The engine whose turn it is, where one follows another."""
    beside: bool = False
    """New engines run before the old ones stop."""

    @property
    def patience(self) -> float:
        """Seconds that running requests get before their server is taken away."""
        proxy = self.target.proxy or self.source.proxy
        assert proxy is not None
        return proxy.drain if self.limit is None else self.limit


@dataclass(frozen=True)
class Draft:
    """A step before its place among the others is known. ``lanes`` are the boxes (or the proxy) it is about."""

    box: str
    target: str
    summary: str
    lanes: frozenset[str]
    params: dict[str, Any]


def on_box(box: str, summary: str, **params: Any) -> Draft:
    """A step about one box."""
    return Draft(box, box, summary, frozenset({box}), params)


def of_engine(engine: Engine, summary: str, **params: Any) -> Draft:
    """A step about one engine, acting on the box of its head."""
    lanes = frozenset(rank.box for rank in engine.ranks)
    return Draft(engine.head.box, engine.id, summary, lanes, {"engine": engine.id, **params})
