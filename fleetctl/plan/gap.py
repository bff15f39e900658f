"""How long no engine will be up when the old ones stop first, from what stops and loads took here. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fleetctl.facts.took import last_loads, last_stops
from fleetctl.facts.types import Observed
from fleetctl.plan.types import Gap
from fleetctl.render.release import Engine, Release
from fleetctl.spec.units import seconds

BETWEEN = 1.0
"""Seconds of a gap that are neither stop nor load: memory seen to be free, files, gates. 0.7 to 1.2 s were measured."""


def gap_of(start: Collection[Engine], stop: Iterable[str], observed: Observed) -> Gap:
    """The gap when engines ``stop`` (``BOX/UNIT``) and others ``start``: the slowest stop and the fastest load."""
    loads = last_loads(observed)
    known = [loads[engine.id] for engine in start if engine.id in loads]
    if not known:
        limit = min(engine.load_limit for engine in start)
        return Gap(
            expected=None,
            why=f"as long as the first engine takes to stop and load; not measured here yet (limit {seconds(limit)})",
        )
    units, stops = set(stop), last_stops(observed)
    fastest, slowest = min(known), max((took for unit, took in stops.items() if unit in units), default=0.0)
    stopping_took = f" ({seconds(slowest)} last time)" if slowest else ""
    return Gap(
        expected=round(fastest + slowest + BETWEEN, 3),
        why=f"the old engines stop first{stopping_took}; loading took {seconds(fastest)} last time",
    )


def gap_between(source: Release, target: Release, observed: Observed) -> Gap:
    """The gap of a move from a layout in which the fleet is not now, if old and new engines do not fit together."""
    stop = [f"{rank.box}/{rank.unit}" for engine in source.engines for rank in engine.ranks]
    return gap_of(target.engines, stop, observed)
