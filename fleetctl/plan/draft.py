"""What the expansion of a playbook works from, and a step before its place among the others is known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fleetctl.facts.types import Observed
from fleetctl.plan.difference import Difference
from fleetctl.plan.merged import merged_proxy
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
    back: bool = False
    """To an earlier generation."""
    lenient: bool = False
    """The way back, or engines that start again as they were: what has become different meanwhile does not stop it."""

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
    via: str = ""
    """Box of the proxy that the step acts on, where there are several for the same target."""


def on_box(box: str, summary: str, **params: Any) -> Draft:
    """A step about one box."""
    return Draft(box, box, summary, frozenset({box}), params)


def of_engine(engine: Engine, summary: str, **params: Any) -> Draft:
    """A step about one engine, acting on the box of its head."""
    lanes = frozenset(rank.box for rank in engine.ranks)
    return Draft(engine.head.box, engine.id, summary, lanes, {"engine": engine.id, **params})


def proxies_of(move: Move) -> list[str]:
    """Boxes that have a proxy during the move: those of the target, and those that it leaves and that run one."""
    stay = list(move.target.proxy.boxes) if move.target.proxy else []
    before = move.source.proxy.boxes if move.source.proxy else ()
    return stay + [box for box in before if box not in stay and move.observed[box].proxy is not None]


def proxy_draft(
    move: Move, box: str, target: str, summary: str, lanes: frozenset[str], params: dict[str, Any]
) -> Draft:
    """A step on one of the proxies; with a single one its id and its words are about *the* proxy."""
    if len(proxies_of(move)) == 1:
        return Draft(box, target, summary, lanes, params)
    return Draft(box, target, f"{summary} ({box})", lanes, params, via=box)


def known_there(move: Move, box: str, names: Iterable[str]) -> list[str]:
    """Those of the servers that the proxy on a box has during the move."""
    target = move.target.proxy
    if target is None or box not in target.boxes:
        proxy = move.observed[box].proxy  # it goes away, and keeps the configuration that it runs
        return [name for name in names if proxy is not None and name in proxy.servers]
    during = merged_proxy(move.source.proxy, target)
    known = {f"{backend.name}/{server.name}" for backend in during.backends for server in backend.servers}
    return [name for name in names if name in known]
