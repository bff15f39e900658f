"""What the running HAProxy has, against the live layout and fleet.yaml; and what it would have after a restart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fleetctl.doctor.finding import Finding, Kind, Remedy, Severity
from fleetctl.doctor.proxy.told import ProxyTold, Running, RunningServer
from fleetctl.doctor.scene import Scene
from fleetctl.doctor.settled import held
from fleetctl.facts.proxies import AGAIN
from fleetctl.facts.types import BoxFacts, unfinished
from fleetctl.plan.difference import description_of, engine_name
from fleetctl.render.names import PROXY_STATES
from fleetctl.render.release import Engine, ProxyConfig, Release, Server

FORCED_MAINT, FORCED_DRAIN = 0x01, 0x08  # bits of srv_admin_state

DIFFERS = Kind(
    "X04",
    Severity.ERROR,
    "the running proxy is not what the layout wants",
    looks_for="servers of the running HAProxy with another address, port, limit or state than the live layout gives "
    "them, one that is missing, and a configuration that is not the one of the layout",
    why="requests go where nobody expects them, or not to an engine that is ready",
    fix="`fleetctl apply` opens and closes servers and brings the configuration; what somebody changed in the running "
    "proxy alone goes with `systemctl reload fleetctl-proxy`; an engine that runs and fails its check is started anew "
    "with `fleetctl restart`",
    source="HAProxy's runtime API: show stat, show servers state",
)
NOT_APPLIED = Kind(
    "X05",
    Severity.NOTE,
    "fleet.yaml has other servers than the proxy",
    looks_for="servers of the live layout that fleet.yaml would give another address, port or limit",
    why="the file was changed and not applied: what the next command does may surprise",
    fix="`fleetctl plan` shows the difference, `fleetctl apply` makes it so",
    source="the release that the boxes keep, against the one that fleet.yaml makes",
)
LEFT_STATE = Kind(
    "X06",
    Severity.WARNING,
    "a restart of the proxy would bring an old state back",
    looks_for=f"servers in {PROXY_STATES} that would be out of service although they are not now, or have another "
    "address than the layout gives them, while no move is under way",
    why="HAProxy reads the file when it starts: the server would be out of service, or have an address of former times",
    fix="remove the file; fleetctl writes it anew when a server is drained or opened",
    source="HAProxy 2.6 configuration manual, server-state-file",
)
KINDS = (DIFFERS, NOT_APPLIED, LEFT_STATE)


def running(scene: Scene, told: Mapping[str, ProxyTold]) -> Iterator[Finding]:
    """What differs. While a move is under way nothing is said: then it is meant to."""
    live = scene.live.proxy
    if live is None or busy(scene):
        return
    for box, one in told.items():
        if box in live.boxes and box in scene.observed and one.running is not None:
            for_apply = [*_configuration(scene, box), *_states(scene, box, live, one.running)]
            for_reload = [*_places(scene, live, one.running)]
            dead = dict(_dead(scene, box, one.running))
            differing = [*for_apply, *for_reload, *dead]
            if differing:
                reload = f"on {box}: `systemctl reload {live.unit}`, which loads its file again"
                words = [*(["`fleetctl apply`"] if for_apply else []), *([reload] if for_reload else [])]
                words += dict.fromkeys(dead.values())
                yield DIFFERS.found(
                    box,
                    live.unit,
                    f"the running proxy is not as {scene.live.layout} wants it: {differing[0]}",
                    *differing,
                    fix="; then ".join(words),
                )
            yield from _left(scene, box, live, one)
    yield from _not_applied(scene, live)


def busy(scene: Scene) -> bool:
    """Somebody changes the fleet, or was cut off while he did."""
    return unfinished(scene.observed) is not None or any(held(facts) for facts in scene.observed.values())


def _configuration(scene: Scene, box: str) -> Iterator[str]:
    proxy = scene.observed[box].proxy
    if proxy is not None and proxy.description != description_of(scene.live):
        yield f"its configuration is `{proxy.description}`, and that of the layout `{description_of(scene.live)}`"


def _states(scene: Scene, box: str, live: ProxyConfig, seen: Running) -> Iterator[str]:
    """Servers that get requests, or none, against the layout; those that are missing or of no layout."""
    there = {server.id: server for server in seen.servers if server.server != AGAIN}
    wanted = {f"{backend.name}/{server.name}": server for backend in live.backends for server in backend.servers}
    engines = {f"{engine.backend}/{engine.server}": engine for engine in scene.live.engines}
    for name, server in wanted.items():
        if name not in there:
            yield f"{name} is missing"
        elif server.layout == scene.live.layout:
            says = _state(scene, box, name, engines.get(name), there[name])
            yield from [says] if says and not there[name].failed else []
        elif there[name].up:
            yield f"{name}, which is not of this layout, gets requests"
    for name, other in there.items():
        if name not in wanted and other.backend in {backend.name for backend in live.backends}:
            yield f"{name} ({other.address}:{other.port}) is of no layout"


def _places(scene: Scene, live: ProxyConfig, seen: Running) -> Iterator[str]:
    """Addresses and limits that somebody has changed in the running proxy."""
    there = {server.id: server for server in seen.servers}
    for backend in live.backends:
        for server in backend.servers:
            name = f"{backend.name}/{server.name}"
            if server.layout == scene.live.layout and name in there:
                yield from _place(name, server, there[name])


def _place(name: str, server: Server, there: RunningServer) -> Iterator[str]:
    # A box that has a name has the address that DNS says; one that is not known yet has none.
    named = there.name not in ("-", "") or there.address in ("", "-")
    if (not named and there.address != server.address) or there.port != server.port:
        yield f"{name} leads to {there.address}:{there.port} instead of {server.address}:{server.port}"
    if there.maxconn != server.maxconn:
        yield f"{name} takes {there.maxconn or 'any number of'} requests at once instead of {server.maxconn}"


def _dead(scene: Scene, box: str, seen: Running) -> Iterator[tuple[str, str]]:
    """Engines that run and fail their check, with 500 or 503 or in silence, and the command that starts them anew."""
    there = {server.id: server for server in seen.servers}
    for engine in scene.live.engines:
        name = f"{engine.backend}/{engine.server}"
        if name in there and there[name].failed and (says := _state(scene, box, name, engine, there[name])):
            yield says, f"`fleetctl restart {engine.model if engine.kind == 'split' else engine.head.box}`"


def _state(scene: Scene, box: str, name: str, engine: Engine | None, there: RunningServer) -> str | None:
    """An engine that runs and gets nothing, by both looks: a server that has only just come up is none."""
    proxy = scene.observed[box].proxy
    before = proxy.servers.get(name) if proxy else None
    if engine is None or there.up or before is None or before.up or not _runs(scene.live, engine, scene):
        return None
    facts = [scene.observed[rank.box] for rank in engine.ranks]
    if any(_kept_out(one, rank.unit) for one, rank in zip(facts, engine.ranks, strict=True)):
        return None
    check = f" ({there.check})" if there.check else ""
    weight = " with weight 0" if there.status.startswith("UP") else ""
    return f"{name} is {there.status}{weight}{check}, although its engine runs"


def _runs(live: Release, engine: Engine, scene: Scene) -> bool:
    """Every rank of it is active, in the build of the layout."""
    for rank in engine.ranks:
        facts = scene.observed.get(rank.box)
        unit = facts.units.get(rank.unit) if facts else None
        if unit is None or unit.active != "active" or unit.engine != engine_name(engine, rank, live.layout):
            return False
    return True


def _kept_out(facts: BoxFacts, unit: str) -> bool:
    """An operator or the guard has taken it out: that is told elsewhere."""
    return facts.drained is not None or unit in facts.guard_out


def _left(scene: Scene, box: str, live: ProxyConfig, told: ProxyTold) -> Iterator[Finding]:
    now = {server.id: server for server in told.running.servers} if told.running else {}
    wanted = {f"{backend.name}/{server.name}": server for backend in live.backends for server in backend.servers}
    drained = any(facts.drained is not None for facts in scene.observed.values())
    evidence = []
    for state in told.states:
        name = f"{state.backend}/{state.server}"
        if name not in now or name not in wanted:
            continue
        server, place = now[name], wanted[name]
        out = bool(state.admin & (FORCED_MAINT | FORCED_DRAIN))
        if out and server.up and not drained:
            evidence.append(f"{PROXY_STATES}: {name} would be out of service, and is {server.status} now")
        elif server.name in ("-", "") and state.port and (state.address, state.port) != (place.address, place.port):
            evidence.append(
                f"{PROXY_STATES}: {name} would be at {state.address}:{state.port} instead of "
                f"{place.address}:{place.port}"
            )
    if evidence:
        yield LEFT_STATE.found(
            box,
            PROXY_STATES,
            f"after a restart of the proxy {len(evidence)} of its servers would not be as they are now",
            *evidence,
            fix=f"mv {PROXY_STATES} {PROXY_STATES}.old",
            remedy=Remedy(
                do=(("mv", PROXY_STATES, f"{PROXY_STATES}.old"),), undo=(("mv", f"{PROXY_STATES}.old", PROXY_STATES),)
            ),
        )


def _not_applied(scene: Scene, live: ProxyConfig) -> Iterator[Finding]:
    wanted = next((r.proxy for r in scene.releases if r.layout == scene.live.layout and r.proxy), None)
    if wanted is None:
        return
    old, new = _of_layout(live, scene.live.layout), _of_layout(wanted, scene.live.layout)
    changed = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    if changed:
        yield NOT_APPLIED.found(
            None,
            "layouts:",
            f"fleet.yaml has {len(changed)} servers of {scene.live.layout} otherwise than the proxy has them",
            *(
                f"{name}: {old.get(name, 'not there')} now, {new.get(name, 'not there')} in fleet.yaml"
                for name in changed
            ),
            fix="`fleetctl plan` shows what else would change; `fleetctl apply` makes it so",
        )


def _of_layout(config: ProxyConfig, layout: str | None) -> dict[str, str]:
    return {
        f"{backend.name}/{server.name}": f"{server.address}:{server.port} maxconn {server.maxconn}"
        for backend in config.backends
        for server in backend.servers
        if server.layout == layout
    }
