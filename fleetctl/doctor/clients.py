"""Clients that go round the proxy, and whether they could."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterator, Mapping
from typing import Any

from fleetctl.doctor.finding import Finding, Kind, Severity
from fleetctl.doctor.scene import Family, Scene
from fleetctl.facts.clients import Client, clients, question, words
from fleetctl.facts.direct import ClientsTold, Requests
from fleetctl.plan.firewall import guards, loaded_as_wanted
from fleetctl.plan.firewall import problems as firewall_problems

LOOK = 3.0  # seconds that connections are watched; `fleetctl clients --watch` does it for longer
LOG = 24 * 3600.0  # seconds of an engine's access log
LATELY = 3600.0  # seconds
A_TRY = 5  # requests in that time below which it was a person who tried something

_MANY = "one copy gets that load on top of its share while the others idle, it never waits for a place, and a move or "
DIRECT = Kind(
    "C01",
    Severity.WARNING,
    "a client goes round the proxy",
    looks_for="connections to an engine's own port that are not from the proxy, a guard, a gate or a reader of "
    "figures, seen while doctor looks, and requests for completions in the engine's access log of the last day",
    why=f"{_MANY}a restart cuts it off",
    fix="point it at the proxy; `fleetctl clients --search` finds the setting, and `firewall:` closes the engines",
    source="an office's cutover: a batch job had one box's address, and all its load went to one copy; /proc/net/tcp; "
    "uvicorn's access log",
)
REFUSED = Kind(
    "C02",
    Severity.NOTE,
    "a client is refused at an engine's own port",
    looks_for="addresses that the firewall of a box has refused within a day",
    why="somebody has an engine's own address in a configuration and gets no answer",
    fix="point it at the proxy, or list it under `firewall: {allow: […]}` if it may",
    source="the set of refused addresses in the table inet fleetctl",
)
OPEN = Kind(
    "C03",
    Severity.NOTE,
    "engines answer everybody",
    looks_for="engines that listen on an address that others can reach, in a fleet without `firewall:`",
    why="whoever finds an engine's address can use it past the proxy's limits and keys, and nothing tells you",
    fix="write `firewall: {}` into fleet.yaml and apply it",
    source="docs/firewall.md",
)
UNGUARDED = Kind(
    "C04",
    Severity.ERROR,
    "the firewall is not in place",
    looks_for="a firewall of fleet.yaml or of the live layout that a box has not loaded, or not as it should be",
    why="the engines are open although fleet.yaml says that they are closed",
    fix="`fleetctl apply` loads it",
    source="docs/firewall.md; `nft list table inet fleetctl`",
)
SETTING = Kind(
    "C05",
    Severity.WARNING,
    "a setting names an engine as its API",
    looks_for="ADDRESS:PORT/v1 of an engine in units, cron files, /etc/default, /etc/environment and /etc/profile.d of "
    "the boxes",
    why="what uses it goes round the proxy as soon as it runs",
    fix="write the proxy's address there; `fleetctl clients --search DIR` looks into other folders",
    source="an office's cutover: a batch job had one box's address in its configuration",
)
KINDS = (DIRECT, REFUSED, OPEN, UNGUARDED, SETTING)


def ask(scene: Scene, box: str) -> dict[str, Any] | None:
    """What a box is asked."""
    asked = question(scene.fleet, scene.live, scene.observed, box)
    if asked is None:
        return None
    leave_out = {*scene.live.superseded.get(box, ()), *scene.fleet.superseded_on(box), *scene.observed[box].superseded}
    return {
        **asked,
        "seconds": LOOK,
        "log": LOG,
        "words": words(scene.fleet, [scene.live], scene.observed),
        "leave_out": sorted(leave_out),
    }


def find(scene: Scene, told: Mapping[str, ClientsTold]) -> Iterator[Finding]:
    """Every finding about clients."""
    for client in clients(scene.live, scene.fleet, scene.observed, told):
        if matters(client) and not _shut_out(scene, client):
            yield _direct(scene, client)
    yield from _refused(scene)
    yield from _firewall(scene, told)
    yield from _settings(scene, told)


def matters(client: Client) -> bool:
    """It uses an engine: more than a reader of figures does, and more than once."""
    if client.reader:
        return False
    return client.connections > 0 or (client.requests is not None and client.requests.work >= A_TRY)


def _shut_out(scene: Scene, client: Client) -> bool:
    """It was let in before there was a firewall, and is not now; or it is allowed to."""
    firewall = scene.live.firewall
    if firewall is None or client.process is not None:
        return False
    if any(ipaddress.ip_address(client.address) in ipaddress.ip_network(network) for network in firewall.allow):
        return True
    heads = {engine.head.box for engine in scene.live.engines if engine.id in client.engines}
    closed = all(
        box in scene.observed and loaded_as_wanted(scene.observed[box], box, scene.live)
        for box in heads
        if guards(scene.live, box)
    )
    return closed and client.open == 0


def proxy_url(scene: Scene) -> str:
    """Where clients belong."""
    proxy = scene.live.proxy
    if proxy is None:
        return "the proxy's address"
    host = f"[{proxy.address}]" if ":" in proxy.address else proxy.address
    return f"{'https' if proxy.certificate else 'http'}://{host}:{proxy.port}/v1"


def _direct(scene: Scene, client: Client) -> Finding:
    engines = ", ".join(client.engines) or "an engine"
    heads = [engine.head.box for engine in scene.live.engines if engine.id in client.engines]
    box = client.box or next(iter(heads), None)
    evidence = []
    if client.connections:
        ends = f"{client.address} → {', '.join(_url(scene, client))}"
        count = f"{client.connections} connection{'' if client.connections == 1 else 's'}"
        evidence.append(f"{ends}: {count} in the last minute, {client.open} open")
    if client.requests is not None:
        evidence.append(f"access log of {engines}: {_counted(client.requests)} from {client.address}")
    if client.process is not None:
        where = f"`fleetctl clients --search {client.box}:DIR` finds the setting"
    else:
        where = f"on {client.address}, look for {', '.join(_url(scene, client))}"
    close = (
        ""
        if scene.live.firewall is not None
        else "; `firewall: {}` in fleet.yaml and `fleetctl apply` close the engines to all but the fleet"
    )
    if client.process is None:
        close += (
            f"; if it only asks for /health or /metrics, list it: `firewall: {{allow: [{client.address}]}}`"
            if client.requests is None
            else "; `bench`, `tune` and `eval` of fleetctl ask engines directly too: then nothing is wrong"
        )
    return DIRECT.found(
        box,
        client.address if client.process is None else client.process.unit or client.process.comm,
        f"{client.name} talks to {engines} directly, not through the proxy",
        *evidence,
        fix=f"point it at {proxy_url(scene)}: {where}{close}",
        severity=Severity.NOTE if _is_long_ago(scene, client) else None,
    )


def _is_long_ago(scene: Scene, client: Client) -> bool:
    """It was there, and may be mended meanwhile."""
    worked = client.requests.worked if client.requests is not None else None
    now = max(facts.time for facts in scene.observed.values())
    return client.connections == 0 and worked is not None and now - worked > LATELY


def _url(scene: Scene, client: Client) -> list[str]:
    return [engine.url.removeprefix("http://") for engine in scene.live.engines if engine.id in client.engines]


def _counted(requests: Requests) -> str:
    last = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(requests.worked or requests.last))
    return f"{requests.work} requests for work (the last at {last}), {requests.reads} that only read"


def _refused(scene: Scene) -> Iterator[Finding]:
    for box, facts in scene.observed.items():
        who = facts.firewall.refused if facts.firewall is not None else ()
        if who:
            told = f"{', '.join(who[:5])}{f' and {len(who) - 5} others' if len(who) > 5 else ''}"
            yield REFUSED.found(
                box,
                "table inet fleetctl",
                f"within a day {told} was refused at an engine's own port",
                *(f"refused: {address}" for address in who[:10]),
                fix=f"point what runs there at {proxy_url(scene)}, or list it: "
                f"`firewall: {{allow: [{', '.join(who[:5])}]}}`, then `fleetctl apply`",
            )


def _firewall(scene: Scene, told: Mapping[str, ClientsTold]) -> Iterator[Finding]:
    if scene.live.layout is None:
        return
    for box, facts in scene.observed.items():
        for problem in firewall_problems(facts, box, scene.live):
            yield UNGUARDED.found(
                box,
                "table inet fleetctl",
                problem.removeprefix(f"{box}: "),
                fix="fleetctl apply" if scene.live.firewall else "fleetctl apply, which takes it away",
            )
    if scene.fleet.firewall is not None and scene.live.firewall is None:
        yield UNGUARDED.found(
            None,
            "firewall:",
            "fleet.yaml wants a firewall, and the boxes have none yet: engines answer everybody",
            fix="fleetctl apply",
        )
    if scene.fleet.firewall is None and scene.live.firewall is None:
        yield from _open(told)


def _open(told: Mapping[str, ClientsTold]) -> Iterator[Finding]:
    seen = [
        f"{box}: an engine listens on {host} port {port}"
        for box, one in sorted(told.items())
        for port, hosts in one.listens.items()
        for host in hosts
        if not ipaddress.ip_address(host).is_loopback
    ]
    if seen:
        yield OPEN.found(
            None,
            "firewall:",
            "engines answer everybody who reaches their boxes: fleet.yaml has no firewall:",
            *seen[:6],
            fix="write `firewall: {}` at the end of fleet.yaml, then `fleetctl apply`; addresses that may reach "
            "engines besides the fleet's go into `firewall: {allow: […]}` (docs/firewall.md)",
        )


def _settings(scene: Scene, told: Mapping[str, ClientsTold]) -> Iterator[Finding]:
    for box, one in told.items():
        for setting in one.settings:
            yield SETTING.found(
                box,
                f"{setting.path}:{setting.line}",
                f"{setting.path} line {setting.line} names {setting.address}, an engine ({setting.engine})",
                f"{setting.path}:{setting.line}: …{setting.address}/v1…",
                fix=f"write {proxy_url(scene)} there",
            )


CLIENTS = Family("clients", KINDS, find, ClientsTold, "examine_clients", ask)
