"""From facts to an answer: which layout is live, and what is wrong with it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fleetctl.errors import FleetError, reason
from fleetctl.facts.operations import GUARDED
from fleetctl.facts.proxies import holders, running_proxies, seen_of, servers_up_somewhere
from fleetctl.facts.types import BoxFacts, Lock, MoveFacts, Observed, ProxyFacts, ServerFacts, lead_of, open_move
from fleetctl.plan.adapters import newest
from fleetctl.plan.difference import PROXY_UNIT, VRRP_UNIT, compare, description_of, engine_name
from fleetctl.plan.firewall import problems as firewall_problems
from fleetctl.plan.pool import PoolWork, not_loaded
from fleetctl.remote.errors import OpFailed
from fleetctl.render.names import GUARD_UNIT
from fleetctl.render.release import Engine, Pool, ProxyConfig, Release


@dataclass(frozen=True)
class EngineState:
    """One engine of the live layout as seen: its unit on every box, and the proxy's word on it."""

    id: str
    boxes: tuple[str, ...]
    state: str
    server: str
    running: int
    queued: int
    cache: int | None = None
    """Tokens of cache that it logged when a move last started it; None: not known."""
    cache_expected: int | None = None
    """What the plan of that move said; None: nothing."""


@dataclass
class Assessment:
    """What ``fleetctl status`` tells."""

    fleet: str
    layout: str | None
    generation: int | None
    previous: int | None
    engines: list[EngineState] = field(default_factory=list)
    waiting: int = 0
    address: str | None = None
    """The floating address, where the proxy has one."""
    address_on: list[str] = field(default_factory=list)
    """Boxes that have it: one, when all is well."""
    available: dict[str, int] = field(default_factory=dict)
    adapters: dict[str, list[str]] = field(default_factory=dict)
    """Model → its LoRA adapters."""
    unreachable: list[str] = field(default_factory=list)
    lock: Lock | None = None
    unfinished: MoveFacts | None = None
    last: MoveFacts | None = None
    problems: list[str] = field(default_factory=list)
    consequences: list[str] = field(default_factory=list)
    """What is not as the layout wants while a move that was cut off is open: finishing or undoing it mends that."""
    notes: list[str] = field(default_factory=list)
    """What is not wrong (any more) but should be known."""

    def under_way(self) -> bool:
        """A move is going on, and whoever runs it is there."""
        return self.unfinished is not None and self.lock is not None and self.lock.alive

    def healthy(self) -> bool:
        """Nothing is wrong and nothing was cut off."""
        return not self.problems and self.unfinished is None


def assess(
    observed: Observed, wanted_lead: str, fleet: str, unreachable: Mapping[str, FleetError] | None = None
) -> Assessment:
    """Compare what is seen with what the current generation says should be.

    Of boxes that could not be reached nothing is known but what the others keep: every box has the whole release.
    """
    away = unreachable or {}
    lead = lead_of(observed, wanted_lead)
    facts = observed[lead] if lead in observed else _newest(observed)
    release = facts.release or Release(fleet=fleet, layout=None)
    meta = facts.generations.get(facts.generation or 0) or {}
    moves = sorted((move for f in observed.values() for move in f.moves), key=lambda move: (move.written, move.move))
    ended = [move for move in moves if move.end is not None]
    found = Assessment(
        fleet=fleet,
        layout=release.layout,
        generation=facts.generation,
        previous=meta.get("previous"),
        available={box: f.memory["available"] for box, f in observed.items()},
        adapters={model: sorted(names) for model, names in newest(observed).adapters.items() if names},
        unreachable=sorted(away),
        lock=facts.lock,
        unfinished=open_move(facts),
        last=ended[-1] if ended else None,
        notes=_notes(observed),
        problems=[_away(box, error) for box, error in away.items()],
    )
    if wanted_lead in away:
        found.problems.append(f"whether a move is under way is not known: {wanted_lead} keeps journal and lock")
    missing = sorted(set(release.boxes()) - set(observed) - set(away))
    if missing:
        found.problems.append(f"the live layout uses boxes that fleet.yaml does not name: {', '.join(missing)}")
        return found
    for engine in release.engines:
        found.engines.append(_engine(engine, release, observed))
    for lodger in release.pool.lodgers if release.pool else ():
        found.engines.append(_lodger(lodger.engine, release, observed))
    for proxy in running_proxies(release.proxy, observed).values():
        found.waiting += sum(s.queued for name, s in proxy.servers.items() if name.endswith("/BACKEND"))
        found.notes += [note for note in _bridge(release, proxy) if note not in found.notes]
    if release.proxy and release.proxy.floating:
        found.address = release.proxy.floating.address
        found.address_on = holders(release.proxy, observed)
    aside = found.unfinished is not None and found.unfinished.operation in GUARDED
    if aside or not found.under_way():
        wrong = found.problems if found.unfinished is None or aside else found.consequences
        states = {engine.id: engine.state for engine in found.engines}
        wrong += _problems(release, observed, facts.generation, states)
    return found


def _away(box: str, error: FleetError) -> str:
    """Why nothing is known of a box: it was not reached, or it answered that it cannot tell."""
    return error.message if isinstance(error, OpFailed) else f"{box} cannot be reached: {reason(box, error)}"


def _notes(observed: Observed) -> list[str]:
    drained = [
        f"{box} is {facts.drained}; `fleetctl undrain {box}` puts it back"
        for box, facts in observed.items()
        if facts.drained is not None
    ]
    odd = [
        f"{box}: {note}; `fleetctl cutover --to LAYOUT` puts a layout in place"
        for box, facts in observed.items()
        for note in facts.notes
    ]
    guarded = [
        f"{box}: the guard has {unit} out of the proxy: {why} (`fleetctl guard status` shows more)"
        for box, facts in observed.items()
        for unit, why in facts.guard_out.items()
    ]
    return _restarts(observed) + drained + odd + guarded + _standing_back(observed) + _refused(observed)


def _standing_back(observed: Observed) -> list[str]:
    """Boxes that were away when a move ended."""
    busy = any(facts.lock is not None or open_move(facts) is not None for facts in observed.values())
    return [
        f"{box}: the end of move {facts.moving} was not heard there: its guard stands back until the next command that "
        "changes the fleet"
        for box, facts in observed.items()
        if facts.moving is not None and GUARD_UNIT in facts.ours and not busy
    ]


def _restarts(observed: Observed) -> list[str]:
    return [
        f"{box}: systemd has started {unit} again {'once' if state.restarts == 1 else f'{state.restarts} times'}"
        for box, facts in observed.items()
        for unit, state in facts.units.items()
        if unit in facts.ours and state.restarts
    ]


def _refused(observed: Observed) -> list[str]:
    return [
        f"{box}: within a day the firewall refused {', '.join(who[:5])}{' and others' if len(who) > 5 else ''} at an "
        "engine's own port: point them at the proxy, or list them under firewall: {allow: […]}"
        for box, facts in observed.items()
        if facts.firewall is not None and (who := facts.firewall.refused)
    ]


def _newest(observed: Observed) -> BoxFacts:
    """The box in the newest generation stands in for a lead box that is away."""
    return max(observed.values(), key=lambda facts: facts.generation or 0)


def _bridge(release: Release, proxy: ProxyFacts) -> list[str]:
    """What there is to say of the bridge: it is at work, or would not be there when it is needed."""
    bridge = release.proxy.bridge if release.proxy else None
    if bridge is None or proxy.bridge is None:
        return []
    if proxy.bridge.running:
        return [f"the bridge {bridge.name} is at work: {proxy.bridge.running} requests run there"]
    if not proxy.bridge.up:
        word = f"{proxy.bridge.status} {proxy.bridge.check}".strip()
        return [f"the bridge {bridge.name} cannot be reached ({word}): requests that find no engine only wait"]
    return []


def _engine(engine: Engine, release: Release, observed: Observed) -> EngineState:
    states = []
    for rank in engine.ranks:
        if rank.box not in observed:
            states.append("unknown")
            continue
        unit = observed[rank.box].units.get(rank.unit)
        right = unit is not None and unit.engine == engine_name(engine, rank, release.layout)
        if unit is None or unit.load == "not-found":
            states.append("missing")
        elif unit.active == "active" and not right:
            states.append("another build")
        else:
            states.append("loading" if unit.active == "activating" and unit.sub != "auto-restart" else unit.active)
    seen = seen_of(f"{engine.backend}/{engine.server}", release.proxy, observed)
    worst = next((state for state in states if state != "active"), "active")
    cache = _cache(engine, observed)
    return EngineState(
        id=engine.id,
        boxes=tuple(rank.box for rank in engine.ranks),
        state=worst,
        server=_server(seen, drained=_drained(engine, observed)),
        running=sum(server.running for server in seen.values()),
        queued=sum(server.queued for server in seen.values()),
        cache=cache.get("tokens"),
        cache_expected=cache.get("expected"),
    )


def _lodger(engine: Engine, release: Release, observed: Observed) -> EngineState:
    """An engine of the pool: whether it is loaded is the worker's to decide, and requests come to it from the queue."""
    facts = observed.get(engine.head.box)
    unit = facts.units.get(engine.head.unit) if facts is not None else None
    if facts is None:
        state = "unknown"
    elif unit is None or unit.load == "not-found":
        state = "missing"
    elif unit.active == "active" and unit.engine != engine_name(engine, engine.head, release.layout):
        state = "another build"
    elif unit.active == "activating" and unit.sub != "auto-restart":
        state = "loading"
    else:
        state = "not loaded" if unit.active == "inactive" else unit.active
    server = "drained" if facts is not None and facts.drained is not None else "pool"
    return EngineState(engine.id, (engine.head.box,), state, server, running=0, queued=0)


def _cache(engine: Engine, observed: Observed) -> dict[str, int | None]:
    """What the last move that started the engine saw of its cache."""
    moves = sorted((move for facts in observed.values() for move in facts.moves), key=lambda move: move.move)
    seen = [(move.end or {}).get("caches", {}).get(engine.id) for move in moves]
    return next((dict(cache) for cache in reversed(seen) if cache), {})


def _server(seen: Mapping[str, ServerFacts], *, drained: bool) -> str:
    """What the proxies say of an engine, in a word where they agree."""
    words = {box: "up" if s.up else "drained" if drained else s.status for box, s in seen.items()}
    told = set(words.values())
    if len(told) > 1:
        return ", ".join(f"{word} on {box}" for box, word in words.items())
    return next(iter(told), "unknown")


def _drained(engine: Engine, observed: Observed) -> bool:
    """Somebody has taken a box of the engine out of the proxy."""
    return any(rank.box in observed and observed[rank.box].drained is not None for rank in engine.ranks)


def _problems(release: Release, observed: Observed, generation: int | None, states: Mapping[str, str]) -> list[str]:
    """What is not as the release wants it; ``states`` are those of its engines."""
    found: list[str] = []
    seen, unseen = seen_part(release, observed)
    units = {rank.unit for engine in unseen for rank in engine.ranks}
    builds = {engine_name(engine, rank, release.layout) for engine in unseen for rank in engine.ranks}
    difference = compare(seen, seen, observed, generation)
    starting = {engine.id for engine in difference.start}
    for name, facts in observed.items():
        found += _box_problems(name, facts, release, generation)
        box = difference.boxes[name]
        stray = [unit for unit in box.stop if unit not in box.start and unit not in units]
        found += [f"{name}: {unit} is not what the layout wants and runs" for unit in stray]
        found += [f"{name}: left-over processes of {engine}" for engine in box.leftovers if engine not in builds]
        foreign = [unit for unit in box.disable if unit not in units]
        found += [f"{name}: {unit} is enabled and belongs to another layout" for unit in foreign]
        found += [f"{name}: {unit} would not start after a reboot" for unit in box.enable]
        if box.start_guard and not box.stop_guard:
            found.append(f"{name}: the guard ({GUARD_UNIT}) does not run")
        if box.adapters:
            found.append(f"{name}: it lacks LoRA adapters that other boxes have: fleetctl apply brings them")
        found += [f"{name}: {unit}, which was replaced, is running or enabled again" for unit in box.supersede]
    found += _pool_problems(difference.pool, seen, observed)
    for engine in difference.open:
        state = states[engine.id]
        if engine.id in starting and state in ("inactive", "failed"):
            found.append(f"{engine.id} is {state}: fleetctl apply starts it")
        elif engine.id in starting:
            found.append(f"{engine.id} does not run as the layout wants it")
        elif state == "loading":
            found.append(f"{engine.id} is loading: it gets requests when it is ready")
        elif seen.proxy and not _drained(engine, observed):
            found.append(
                f"{engine.id} runs, but the proxy{_where_not(engine, seen.proxy, observed)} sends it no requests"
            )
    opened = {engine.id for engine in difference.open}
    found += _silent_models(seen, states, opened)
    for engine in seen.engines:
        if engine.id not in opened and seen.proxy and _drained(engine, observed):
            found.append(f"the proxy sends requests to {engine.id}, although its box is drained: drain it again")
    away = {f"{engine.backend}/{engine.server}" for engine in unseen}
    up = servers_up_somewhere(seen.proxy, observed)
    closed = [name for name in difference.close if name not in away and name in up]
    found += [f"the proxy sends requests to {name}, which is not of this layout" for name in closed]
    for name in seen.proxy.boxes if seen.proxy else ():
        proxy = observed[name].proxy
        if proxy is None:
            found.append(f"{name}: the proxy ({PROXY_UNIT}) does not run")
        elif proxy.description != description_of(release):
            found.append(f"{name}: the proxy does not run the configuration of this layout")
    return found + _address_problems(release, seen, observed)


def _pool_problems(work: PoolWork, release: Release, observed: Observed) -> list[str]:
    """What of the pool does not run, or gets no requests."""
    renewed = {(service.box, service.unit) for service in work.start} & set(work.stop)
    found = [
        f"{box}: {unit} does not run as the layout wants it: fleetctl apply starts it again" for box, unit in renewed
    ]
    found += [
        f"{box}: {unit} is not what the layout wants and runs" for box, unit in work.stop if (box, unit) not in renewed
    ]
    found += [
        f"{service.box}: {service.unit} does not run: fleetctl apply starts it"
        for service in work.start
        if (service.box, service.unit) not in renewed
    ]
    down = {service.box for service in work.start if service.kind == "gateway"}
    down |= {box for box, facts in observed.items() if facts.drained is not None}
    closed = dict.fromkeys(server.box for _, server in work.open if server.box in observed and server.box not in down)
    if release.proxy is not None:
        found += [f"{box}: its gateway runs, but the proxy sends it no requests" for box in closed]
    return found + [
        f"{engine.id} is pinned and {'still loads' if _loads(engine, observed) else 'not loaded'}"
        for engine in not_loaded(release, observed)
    ]


def _loads(engine: Engine, observed: Observed) -> bool:
    state = observed[engine.head.box].units.get(engine.head.unit)
    return state is not None and state.active == "activating"


def _silent_models(release: Release, states: Mapping[str, str], told: set[str]) -> list[str]:
    """Models of which no engine answers, although nothing is to be done: after a reboot all of them load."""
    found = []
    for model in dict.fromkeys(engine.model for engine in release.engines):
        ids = [engine.id for engine in release.engines if engine.model == model]
        if not any(states[name] == "active" or name in told for name in ids):
            found.append(f"nothing answers for {model} yet: {', '.join(f'{name} is {states[name]}' for name in ids)}")
    return found


def _where_not(engine: Engine, proxy: ProxyConfig, observed: Observed) -> str:
    """`` on BOX`` where the proxy on another box does send an engine requests."""
    told = seen_of(f"{engine.backend}/{engine.server}", proxy, observed)
    without = [box for box, server in told.items() if not server.up]
    return f" on {', '.join(without)}" if 0 < len(without) < len(told) else ""


def _address_problems(release: Release, seen: Release, observed: Observed) -> list[str]:
    """What is wrong with the floating address, and which box would not take it."""
    if release.proxy is None or release.proxy.floating is None or seen.proxy is None:
        return []
    address, found = release.proxy.floating.address, []
    for box in seen.proxy.boxes:
        unit = observed[box].units.get(VRRP_UNIT)
        if unit is None or unit.active != "active":
            found.append(f"{box}: {VRRP_UNIT} does not run: {address} would not come to this box")
    on = holders(release.proxy, observed)
    if len(on) > 1:
        found.append(
            f"{', '.join(on)} have the address {address} at the same time: they do not hear each other "
            "(VRRP is IP protocol 112; is it let through?)"
        )
    elif not on and seen.proxy.boxes == release.proxy.boxes:
        found.append(f"no box has the address {address}: clients reach nothing there")
    return found


def seen_part(release: Release, observed: Observed) -> tuple[Release, list[Engine]]:
    """The part of a release that can be compared, and the engines that cannot: a box of theirs was not seen."""
    seen = [engine for engine in release.engines if all(rank.box in observed for rank in engine.ranks)]
    unseen = [engine for engine in release.engines if engine not in seen]
    there = tuple(box for box in release.proxy.boxes if box in observed) if release.proxy else ()
    proxy = release.proxy.model_copy(update={"boxes": there}) if release.proxy and there else None
    pool = _seen_pool(release.pool, observed) if release.pool else None
    return release.model_copy(update={"engines": tuple(seen), "proxy": proxy, "pool": pool}), unseen


def _seen_pool(pool: Pool, observed: Observed) -> Pool:
    services = tuple(service for service in pool.services if service.box in observed)
    return Pool(services=services, lodgers=tuple(one for one in pool.lodgers if one.engine.head.box in observed))


def _box_problems(name: str, facts: BoxFacts, release: Release, generation: int | None) -> list[str]:
    found = [f"{name}: {path} was edited or removed" for path in facts.drift]
    if name in release.boxes() and facts.generation != generation:
        its = "no generation (was it installed anew?)" if facts.generation is None else f"generation {facts.generation}"
        found.append(f"{name}: it is in {its}, the fleet in {generation}")
    found += firewall_problems(facts, name, release)
    for unit, state in facts.units.items():
        if unit in facts.ours and state.drop_ins:
            found.append(f"{name}: {unit} is overridden by {', '.join(state.drop_ins)}")
    return found
