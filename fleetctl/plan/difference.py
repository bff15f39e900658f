"""What separates the fleet as seen from a release: pure comparison, box by box."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from fleetctl.facts.proxies import servers_not_closed
from fleetctl.facts.types import BoxFacts, Observed, UnitFacts
from fleetctl.plan.adapters import behind
from fleetctl.plan.firewall import Work, guards, work_on
from fleetctl.plan.measuring import Measuring
from fleetctl.plan.merged import merged_proxy, names_during
from fleetctl.plan.pool import PoolWork, loaded_wrongly, pool_work
from fleetctl.render.names import (
    FIREWALL_UNIT,
    GUARD_FOLDER,
    GUARD_UNIT,
    POOL_UNITS,
    VRRP_FOLDER,
    secrets_path,
)
from fleetctl.render.proxy import proxy_files
from fleetctl.render.release import Engine, ProxyConfig, Rank, Release
from fleetctl.render.trial import Trial

UNIT_FOLDER = "/etc/systemd/system/"


def engine_name(engine: Engine, rank: Rank, layout: str | None) -> str:
    """The value of FLEETCTL_ENGINE in a process of this engine's build."""
    return f"{layout}/{engine.model}@{rank.digest[:12]}"


@dataclass
class BoxDifference:
    """What one box lacks. Units map to the unit file's rank where one is known."""

    box: str
    stop: dict[str, UnitFacts] = field(default_factory=dict)
    start: dict[str, tuple[Engine, Rank]] = field(default_factory=dict)
    lodging: dict[str, tuple[Engine, Rank]] = field(default_factory=dict)
    """Engines of the pool that a worker may start and that were not there like this before."""
    leftovers: list[str] = field(default_factory=list)
    supersede: list[str] = field(default_factory=list)
    give_back: list[str] = field(default_factory=list)
    at_boot: list[str] = field(default_factory=list)
    enable: list[str] = field(default_factory=list)
    disable: list[str] = field(default_factory=list)
    install: list[str] = field(default_factory=list)
    remove: list[str] = field(default_factory=list)
    generation: bool = False
    mark_drained: bool = False
    forget_drained: bool = False
    firewall: Work = ""
    stop_guard: bool = False
    start_guard: bool = False
    adapters: bool = False
    """It lacks LoRA adapters that another box has, or has some that were removed while it was away."""

    @property
    def coming(self) -> dict[str, tuple[Engine, Rank]]:
        """Everything that has to be able to start here."""
        return {**self.start, **self.lodging}


@dataclass
class Difference:
    """What the whole fleet lacks."""

    boxes: dict[str, BoxDifference]
    start: list[Engine]
    prove: list[Engine]
    open: list[Engine]
    close: list[str]
    load: ProxyConfig | None
    settle_proxy: bool
    load_on: list[str] = field(default_factory=list)
    """Boxes on which the proxy does not run ``load`` yet."""
    settle_address: bool = False
    measuring: Measuring | None = None
    """What is measured while the one engine in ``prove`` is out of the proxy."""
    trial: Trial | None = None
    """What is started between the stop and the start of the one engine in ``start``, to be measured."""
    served: bool = False
    """Other copies take the requests while engines start."""
    pool: PoolWork = field(default_factory=PoolWork)

    def nothing(self) -> bool:
        """The fleet is as the release wants it."""
        return not (
            self.start
            or self.open
            or self.close
            or self.load
            or self.settle_proxy
            or self.settle_address
            or self.pool.any()
        ) and not any(
            box.stop
            or box.supersede
            or box.give_back
            or box.enable
            or box.disable
            or box.install
            or box.remove
            or box.leftovers
            or box.generation
            or box.mark_drained
            or box.forget_drained
            or box.firewall
            or box.stop_guard
            or box.start_guard
            or box.adapters
            for box in self.boxes.values()
        )


PROXY_UNIT = ProxyConfig.model_fields["unit"].default
VRRP_UNIT = ProxyConfig.model_fields["vrrp_unit"].default
NO_ENGINES = (PROXY_UNIT, VRRP_UNIT, FIREWALL_UNIT, GUARD_UNIT, *POOL_UNITS)


def compare(
    source: Release,
    target: Release,
    observed: Observed,
    generation: int | None,
    anew: Collection[str] = (),
    *,
    back: bool = False,
) -> Difference:
    """What has to change so that the fleet, seen as ``observed``, is in ``target`` (kept as ``generation``).

    Engines whose id is in ``anew`` start again even when they run as they should. ``back``: the way back, on which
    units that the target does not supersede get their state back. On any other they stay as they are.
    """
    restart = _engines_to_start(target, observed, anew)
    boxes = {
        name: _compare_box(facts, name, source, target, restart, generation, back) for name, facts in observed.items()
    }
    for name in behind(observed):
        boxes[name].adapters = True
    wanted = {f"{engine.backend}/{engine.server}": engine for engine in target.engines}
    starting = {engine.id for engine in restart}
    up = {
        name
        for name in (f"{backend}/{server.name}" for backend, server in target.gateways())
        if target.proxy is not None and _up_on_all(name, target.proxy, observed)
    }
    pool = pool_work(
        target,
        observed,
        {name: [*box.install, *box.remove] for name, box in boxes.items()},
        {name: box.stop for name, box in boxes.items()},
        up,
    )
    staying = {f"{backend}/{server.name}" for backend, server in target.gateways()} - {
        f"{backend}/{server.name}" for backend, server in pool.open
    }
    # Proxies that go away count too: until they do, requests come through them. So do servers that are down or have no
    # weight: requests may still run there, and a check that passes brings them back in the middle of the move.
    open_now = servers_not_closed(target.proxy, observed) | servers_not_closed(source.proxy, observed)
    closed = [
        name
        for name in sorted({name for seen in open_now for name in names_during(seen, source.proxy, target.proxy)})
        if name not in staying and (name not in wanted or wanted[name].id in starting) and not name.endswith("/BACKEND")
    ]
    opened = [
        engine
        for name, engine in wanted.items()
        if engine.id in starting or (target.proxy is not None and not _up_on_all(name, target.proxy, observed))
    ]
    load, load_on = _transition(source, target, observed)
    settle = target.proxy is not None and any(
        _proxy_unsettled(target, observed, box, boxes[box]) for box in target.proxy.boxes
    )
    return Difference(
        boxes=boxes,
        start=restart,
        prove=opened,
        open=opened,
        close=closed,
        load=load,
        load_on=load_on,
        settle_proxy=settle or load is not None or _unit_to_leave(PROXY_UNIT, _proxy_on(target), observed),
        settle_address=_address_unsettled(target, observed, boxes),
        pool=pool,
    )


def _up_on_all(name: str, proxy: ProxyConfig, observed: Observed) -> bool:
    """Every box of the proxy sends requests to a server. One whose proxy does not run has to be seen doing so."""
    seen = [observed[box].proxy for box in proxy.boxes]
    return all(one is not None and name in one.servers and one.servers[name].up for one in seen)


def _proxy_on(target: Release) -> tuple[str, ...]:
    return target.proxy.boxes if target.proxy else ()


def _address_on(target: Release) -> tuple[str, ...]:
    return target.proxy.boxes if target.proxy and target.proxy.floating else ()


def _engines_to_start(target: Release, observed: Observed, anew: Collection[str]) -> list[Engine]:
    """Engines of which some rank does not run the right build with the secrets of now. A split starts as a whole."""

    def right(engine: Engine, rank: Rank) -> bool:
        if engine.id in anew or _is_stale(observed[rank.box], target, engine):
            return False
        unit = observed[rank.box].units.get(rank.unit)
        if unit is None or unit.active not in ("active", "activating") or unit.sub == "auto-restart":
            return False
        return unit.engine == engine_name(engine, rank, target.layout)

    return [engine for engine in target.engines if not all(right(engine, rank) for rank in engine.ranks)]


def _is_stale(facts: BoxFacts, target: Release, engine: Engine) -> bool:
    """The secrets of an engine are not those of now."""
    return secrets_path(target.layout or "", engine.model) in facts.stale


def _compare_box(
    facts: BoxFacts,
    box: str,
    source: Release,
    target: Release,
    restart: list[Engine],
    generation: int | None,
    back: bool,
) -> BoxDifference:
    starting = {engine.id for engine in restart}
    wanted = {rank.unit: (engine, rank) for engine, rank in target.ranks_on(box)}
    start = {unit: pair for unit, pair in wanted.items() if pair[0].id in starting}
    lodgers = {rank.unit: (engine, rank) for engine, rank in target.lodgers_on(box)}
    ours = {unit: state for unit, state in facts.units.items() if unit in facts.ours and unit not in NO_ENGINES}
    wrong = start.keys() | loaded_wrongly(
        target,
        box,
        facts,
        {unit: engine_name(engine, rank, target.layout) for unit, (engine, rank) in lodgers.items()},
        {unit for unit, (engine, _) in lodgers.items() if _is_stale(facts, target, engine)},
    )
    allowed = wanted.keys() | lodgers.keys()
    stop = {
        unit: state
        for unit, state in ours.items()
        if (state.active not in ("inactive",) and (unit not in allowed or unit in wrong))
    }
    kept = {state.engine for unit, state in ours.items() if unit in allowed and unit not in wrong}
    leftovers = sorted({p.engine for p in facts.processes if p.engine and p.engine not in kept})
    proxy_here = {PROXY_UNIT} if box in _proxy_on(target) else set()
    proxy_here |= {VRRP_UNIT} if box in _address_on(target) else set()
    at_boot = set(wanted) | proxy_here | ({FIREWALL_UNIT} if guards(target, box) else set())
    at_boot |= {GUARD_UNIT} if has_guard(target, box) else set()
    at_boot |= {service.unit for service in (target.pool.on(box) if target.pool else [])}
    superseded = target.superseded.get(box, ())
    source_paths = {file.path for file in source.files.get(box, ())}
    target_paths = {file.path for file in target.files.get(box, ())}
    stray = {UNIT_FOLDER + unit for unit in facts.ours if facts.units[unit].load != "not-found"}
    install = _files_to_install(facts, box, source, target)
    remove = sorted((source_paths | stray) - target_paths)
    stop_guard, start_guard = _guard(facts, target, box, [*install, *remove])
    return BoxDifference(
        box=box,
        stop=stop,
        start=start,
        lodging={unit: pair for unit, pair in lodgers.items() if UNIT_FOLDER + unit in install},
        leftovers=leftovers,
        supersede=[
            unit
            for unit in superseded
            if (state := facts.units.get(unit)) and state.load != "not-found" and (not state.down or state.at_boot)
        ],
        give_back=[unit for unit in facts.superseded if back and unit not in superseded],
        at_boot=sorted(at_boot),
        enable=sorted(u for u in at_boot if not (facts.units.get(u) and facts.units[u].at_boot)),
        disable=sorted(u for u, s in facts.units.items() if u in facts.ours and u not in at_boot and s.at_boot),
        install=install,
        remove=remove,
        generation=facts.generation != generation,
        forget_drained=facts.drained is not None,
        firewall=work_on(facts, box, target, install, remove),
        stop_guard=stop_guard,
        start_guard=start_guard,
    )


def has_guard(release: Release, box: str) -> bool:
    """The release has a guard on this box."""
    return any(file.path == UNIT_FOLDER + GUARD_UNIT for file in release.files.get(box, ()))


def _guard(facts: BoxFacts, target: Release, box: str, changed: list[str]) -> tuple[bool, bool]:
    """Whether the guard that runs has to stop, and whether one has to start: its files change together."""
    state = facts.units.get(GUARD_UNIT)
    runs, wanted = state is not None and state.active == "active", has_guard(target, box)
    up = runs or (state is not None and not state.down)
    renewed = any(path.startswith(GUARD_FOLDER + "/") or path == UNIT_FOLDER + GUARD_UNIT for path in changed)
    return up and (renewed or not wanted), wanted and (renewed or not runs)


def _files_to_install(facts: BoxFacts, box: str, source: Release, target: Release) -> list[str]:
    before = {file.path: file for file in source.files.get(box, ())} if facts.release else {}
    mine = {file.path: file for file in facts.release.files.get(box, ())} if facts.release else before
    touched = {*facts.drift, *facts.stale}
    return [file.path for file in target.files.get(box, ()) if mine.get(file.path) != file or file.path in touched]


def _transition(source: Release, target: Release, observed: Observed) -> tuple[ProxyConfig | None, list[str]]:
    """The configuration to load before the move, and on which boxes; None when the running ones will do."""
    if target.proxy is None:
        return None, []
    during = merged_proxy(source.proxy, target.proxy)
    running = {box: observed[box].proxy for box in target.proxy.boxes}
    lacking = [box for box, proxy in running.items() if proxy is None or proxy.description != description(during)]
    return (during, lacking) if lacking else (None, [])


def description(config: ProxyConfig) -> str:
    """What ``show info`` says of a proxy that runs this configuration, as this version of fleetctl renders it."""
    return f"fleetctl {config.fingerprint()}"


def description_of(release: Release) -> str | None:
    """What ``show info`` says of a proxy that runs the release's own haproxy.cfg, whichever version rendered it."""
    if release.proxy is None:
        return None
    for file in (file for box in release.proxy.boxes for file in release.files.get(box, ())):
        found = re.search(r"^ *description (fleetctl \S+)$", file.content, re.MULTILINE)
        if found and file.path.endswith("/haproxy.cfg"):
            return found[1]
    return description(release.proxy)


def _proxy_unsettled(target: Release, observed: Observed, box: str, difference: BoxDifference) -> bool:
    assert target.proxy is not None
    running = observed[box].proxy
    paths = {file.path for file in proxy_files(target.proxy, box)}
    return running is None or running.description != description_of(target) or bool(paths & set(difference.install))


def _address_unsettled(target: Release, observed: Observed, boxes: dict[str, BoxDifference]) -> bool:
    """keepalived does not run as it should on a box of the proxy, or still does on another."""
    for box in _address_on(target):
        unit = observed[box].units.get(VRRP_UNIT)
        if unit is None or unit.down or not unit.at_boot or any(is_vrrp(path) for path in boxes[box].install):
            return True
    return _unit_to_leave(VRRP_UNIT, _address_on(target), observed)


def is_vrrp(path: str) -> bool:
    """A file of the floating address."""
    return path.startswith(VRRP_FOLDER + "/") or path == UNIT_FOLDER + VRRP_UNIT


def _unit_to_leave(name: str, wanted: Collection[str], observed: Observed) -> bool:
    """A unit of ours runs (or would at boot) on a box where the target has none."""
    return any(
        box not in wanted and (unit := facts.units.get(name)) is not None and (not unit.down or unit.at_boot)
        for box, facts in observed.items()
    )
