"""What separates the pool as seen from the one that a release wants: programs, engines, servers of the proxy. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fleetctl.facts.types import BoxFacts, Observed
from fleetctl.render.names import BATCH_UNIT, NATS_UNIT, POOL_UNITS, WORKER_UNIT
from fleetctl.render.release import Engine, Lodger, Release, Server, Service


@dataclass(frozen=True)
class PoolWork:
    """What there is to do for a pool; empty where it is as it should be, or where there is none."""

    stop: tuple[tuple[str, str], ...] = ()
    """Box and unit of each program that stops: what is left, and what starts again with other files."""
    start: tuple[Service, ...] = ()
    prove: tuple[Service, ...] = ()
    """Programs that have to be seen at work before the proxy sends requests there."""
    gate: tuple[Lodger, ...] = ()
    """Pinned engines that are asked directly before."""
    open: tuple[tuple[str, Server], ...] = field(default=())
    """Gateways that the proxy does not send requests to yet, each with its backend."""
    drain: tuple[str, ...] = ()
    """Boxes whose workers, which take nothing more, finish what they have."""
    restart: tuple[Engine, ...] = ()
    """Engines that are loaded and start anew, one after the other."""

    def any(self) -> bool:
        """Something is to be done."""
        return bool(self.stop or self.start or self.open or self.drain or self.restart)


def pool_work(
    target: Release,
    observed: Observed,
    changed: Mapping[str, Collection[str]],
    stopping: Mapping[str, Collection[str]],
    up: Collection[str],
) -> PoolWork:
    """What there is to do. ``changed`` has the files that change on each box, ``stopping`` units of engines that stop
    there, and ``up`` the names (BACKEND/SERVER) to which every proxy sends requests."""
    stop: list[tuple[str, str]] = []
    start: list[Service] = []
    for box, facts in observed.items():
        wanted = {service.unit: service for service in (target.pool.on(box) if target.pool else [])}
        for unit in POOL_UNITS:
            state = facts.units.get(unit)
            runs = state is not None and unit in facts.ours and not state.down
            service = wanted.get(unit)
            renewed = service is not None and _renewed(service, facts, target, changed[box], stopping[box])
            if runs and (service is None or renewed):
                stop.append((box, unit))
            if service is not None and (renewed or not runs):
                start.append(service)
    began = {(service.box, service.kind) for service in start}
    opened = tuple(
        (backend, server)
        for backend, server in target.gateways()
        if f"{backend}/{server.name}" not in up or (server.box, "gateway") in began
    )
    pool = target.pool
    if pool is None or not (start or opened):
        return PoolWork(stop=tuple(stop))
    gate = tuple(one for one in pool.lodgers if one.pinned and (one.engine.head.box, "worker") in began)
    return PoolWork(tuple(stop), tuple(start), pool.services, gate, opened)


def _renewed(
    service: Service, facts: BoxFacts, target: Release, changed: Collection[str], stopping: Collection[str]
) -> bool:
    """It has to start again: a file of its own changes, or, of a worker, an engine that it has loaded."""
    if not set(changed).isdisjoint(service.paths):
        return True
    mine = {rank.unit for _, rank in target.lodgers_on(service.box)}
    return service.unit == WORKER_UNIT and not mine.isdisjoint(stopping)


def loaded_wrongly(
    target: Release, box: str, facts: BoxFacts, name: Mapping[str, str], stale: Collection[str]
) -> set[str]:
    """Units of the pool's engines on a box that run another build, or with other secrets, than the release has.

    ``name`` has the FLEETCTL_ENGINE of each unit, and ``stale`` the units whose secrets are not those of now.
    """
    found = set()
    for _, rank in target.lodgers_on(box):
        state = facts.units.get(rank.unit)
        if state is not None and not state.down and (state.engine != name[rank.unit] or rank.unit in stale):
            found.add(rank.unit)
    return found


def why_not_drained(target: Release, observed: Observed, work: PoolWork) -> list[str]:
    """Boxes that are drained while programs of the pool are to be proved there: a worker that takes nothing is not."""
    names = dict.fromkeys(service.box for service in work.prove)
    return [
        f"{box} is drained, and its worker takes nothing until `fleetctl undrain {box}`"
        for box in names
        if box in observed and observed[box].drained is not None
    ]


def kind_of(unit: str) -> str:
    """The part of a pool that a unit is: nats, worker, batch or gateway."""
    return {NATS_UNIT: "nats", WORKER_UNIT: "worker", BATCH_UNIT: "batch"}.get(unit, "gateway")


def not_loaded(release: Release, observed: Observed) -> list[Engine]:
    """Pinned engines that do not run although their worker does, and may start them."""
    found = []
    for lodger in release.pool.lodgers if release.pool else ():
        box, unit = lodger.engine.head.box, lodger.engine.head.unit
        if not lodger.pinned or box not in observed:
            continue
        worker, state = observed[box].units.get(WORKER_UNIT), observed[box].units.get(unit)
        if (
            observed[box].drained is None
            and worker is not None
            and worker.active == "active"
            and (state is None or state.active != "active")
        ):
            found.append(lodger.engine)
    return found
