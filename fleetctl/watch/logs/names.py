"""Which units on which boxes a person means. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fleetctl.errors import RefusedError, SpecError
from fleetctl.render.names import FIREWALL_UNIT, GUARD_UNIT, PROXY_UNIT, VRRP_UNIT, engine_unit
from fleetctl.render.release import Release
from fleetctl.spec.fleet import Fleet
from fleetctl.spec.problems import near_or_all


@dataclass(frozen=True)
class Source:
    """One unit on one box. ``engine`` is empty for a unit that is none; ``called`` is its short name in the output."""

    box: str
    unit: str
    called: str
    engine: str = ""
    model: str = ""
    layout: str = ""


def sources_of(fleet: Fleet, live: Release | None) -> list[Source]:
    """Every unit that can have something to say: engines of all layouts, and what stands around them."""
    found = []
    if live is not None:
        found = [
            Source(rank.box, rank.unit, engine.model, engine.id, engine.model, live.layout or "")
            for engine in live.all_engines
            for rank in engine.ranks
        ]
    for layout, models in fleet.layouts.items():
        if live is not None and layout == live.layout:
            continue
        for model, placement in models.items():
            for box in placement.boxes:
                split = placement.split is not None
                engine = f"{layout}/{model}" if split else f"{layout}/{model}@{box}"
                found.append(Source(box, engine_unit(layout, model), f"{layout}/{model}", engine, model, layout))
    services = live.pool.services if live is not None and live.pool is not None else ()
    found += [Source(service.box, service.unit, service.kind) for service in services]
    return found + list(_around(fleet))


def _around(fleet: Fleet) -> Iterator[Source]:
    for box in fleet.boxes:
        if box in fleet.proxy.on:
            yield Source(box, PROXY_UNIT, "proxy")
            if fleet.proxy.floating is not None:
                yield Source(box, VRRP_UNIT, "keepalived")
        if fleet.guard is not None:
            yield Source(box, GUARD_UNIT, "guard")
        if fleet.firewall is not None:
            yield Source(box, FIREWALL_UNIT, "firewall")
        for unit in fleet.superseded_on(box):
            yield Source(box, unit, unit.removesuffix(".service"))


def chosen(
    sources: Iterable[Source], names: Iterable[str], live: Release | None, boxes: Iterable[str], *, everything: bool
) -> list[Source]:
    """The sources that are meant: of names, each a box, model, engine, layout or unit; without names the live engines.

    ``everything``: also what stands around the engines. Raises SpecError with the nearest name for one that there is
    not, RefusedError where nothing of fleetctl is live and nothing was named.
    """
    every, places, wanted = list(sources), list(boxes), list(names)
    layout = live.layout if live is not None else None
    usual = [one for one in every if (one.layout == layout if one.engine else everything)]
    if layout is None:
        usual = [one for one in usual if not one.engine]
    if not wanted:
        if not usual:
            raise RefusedError(
                "no layout is live yet, so there are no engines to read the log of",
                hint="name a unit, or see the rest with --all",
            )
        return usual
    found: list[Source] = []
    for name in wanted:
        meant = _meant(name, every, usual, places, layout)
        if not meant and name not in places:
            raise SpecError(f"there is no box, model, engine or unit {name}", hint=_near(name, every, places))
        found += meant
    if not found:
        raise RefusedError(
            f"no engine of the live layout is on {', '.join(wanted)}", hint="--all shows what else is there"
        )
    return list(dict.fromkeys(found))


def _meant(name: str, every: list[Source], usual: list[Source], boxes: list[str], layout: str | None) -> list[Source]:
    if name in boxes:
        return [one for one in usual if one.box == name]
    if of_model := [one for one in every if one.model == name]:
        return [one for one in of_model if one.layout == layout] or of_model
    unit = name if "." in name.rpartition("/")[2] else f"{name}.service"
    return [one for one in every if name in (one.engine, one.called) or unit == one.unit or name == one.layout]


def _near(name: str, every: list[Source], boxes: list[str]) -> str:
    if name.endswith((".yaml", ".yml")):
        return f"-f follows the log here; name the fleet's file with --fleet {name}"
    known = dict.fromkeys([*boxes, *(word for one in every for word in (one.model, one.engine, one.unit) if word)])
    return near_or_all(name, known)
