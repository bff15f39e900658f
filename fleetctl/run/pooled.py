"""What of the live layout is a pool: on a box, loaded, or missed without the box. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from fleetctl.facts.proxies import servers_up
from fleetctl.facts.types import Observed
from fleetctl.plan.pool import PoolWork
from fleetctl.render.names import WORKER_UNIT
from fleetctl.render.release import Engine, Release, Service


def lodgers(live: Release) -> list[Engine]:
    """Engines of the pool."""
    return [one.engine for one in (live.pool.lodgers if live.pool else ())]


def services(live: Release) -> tuple[Service, ...]:
    """Programs of the pool."""
    return live.pool.services if live.pool else ()


def gateways_of(live: Release) -> dict[str, str]:
    """Servers of the proxy that are gateways, each with its box."""
    return {f"{backend}/{server.name}": server.box for backend, server in live.gateways()}


def is_loaded(engine: Engine, observed: Observed) -> bool:
    """An engine of the pool runs, and its worker too."""
    units = observed[engine.head.box].units
    return all(unit in units and units[unit].active == "active" for unit in (engine.head.unit, WORKER_UNIT))


def restarted(live: Release, work: PoolWork, loaded: list[Engine]) -> PoolWork:
    """The work on the pool, and engines that start anew and are asked afterwards."""
    ids = {engine.id for engine in loaded} | {one.engine.id for one in work.gate}
    gate = tuple(one for one in (live.pool.lodgers if live.pool else ()) if one.engine.id in ids)
    return replace(work, restart=tuple(loaded), gate=gate)


def taken_back(live: Release, observed: Observed, box: str, up: Collection[str]) -> PoolWork:
    """What proves that a box is in the pool again, and the gateways there that the proxy does not use."""
    mine = tuple(service for service in services(live) if service.box == box and service.kind in ("worker", "gateway"))
    opened = tuple(
        (backend, server)
        for backend, server in live.gateways()
        if server.box == box and f"{backend}/{server.name}" not in up
    )
    return PoolWork(prove=mine, open=opened)


def left_in_pool(live: Release, observed: Observed, box: str) -> set[str]:
    """Models of the pool that nobody serves without a box: no other has them, or no other gateway takes requests."""
    pooled = lodgers(live)
    away = {name for name, facts in observed.items() if facts.drained is not None} | {box}
    if observed[box].drained is not None:
        return set()
    left = {
        engine.model
        for engine in pooled
        if engine.head.box == box
        and not any(other.model == engine.model and other.head.box not in away for other in pooled)
    }
    gateways = gateways_of(live)
    everywhere = servers_up(live.proxy, observed)
    if box in gateways.values() and not any(name in everywhere for name, where in gateways.items() if where != box):
        left |= {engine.model for engine in pooled}
    return left


def nats_alone(live: Release, box: str) -> str | None:
    """What is to be known of a box that has the pool's queue; None where it has none."""
    boxes = [service.box for service in services(live) if service.kind == "nats"]
    if box not in boxes:
        return None
    if len(boxes) > 1:
        return f"{box} is one of {len(boxes)} boxes that keep the queue: it can stop while the others run"
    return f"the queue of the pool is on {box} alone, and is not drained: while NATS is stopped nothing is accepted"
