"""Who talks to the engines at their own ports: what the boxes told, put together. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fleetctl.facts.direct import Caller, ClientsTold, Connection, Requests
from fleetctl.facts.types import Observed
from fleetctl.render.release import Engine, Release
from fleetctl.spec.fleet import Fleet

# Programs that read figures: they go to every engine's own address, as they should.
READERS = {
    "prometheus", "vmagent", "victoria-metric", "telegraf", "grafana-agent", "alloy", "otelcol", "otelcol-contrib",
    "netdata", "datadog-agent", "zabbix_agentd", "zabbix_agent2", "metricbeat", "blackbox_export",
}  # fmt: skip
WORK, READS = "work", "reads"


@dataclass(frozen=True)
class Client:
    """Somebody who talks to engines directly: a process of a box of the fleet, or an address elsewhere.

    ``requests`` is what the engines' logs say of the address; None: they say nothing.
    """

    address: str
    box: str | None
    process: Caller | None
    engines: tuple[str, ...]
    first: float
    last: float
    open: int = 0
    connections: int = 0
    up: int | None = None
    down: int | None = None
    requests: Requests | None = None
    asked: frozenset[str] = field(default_factory=frozenset)

    @property
    def name(self) -> str:
        """Who it is, in a few words."""
        if self.process is None:
            return self.address
        return f"{self.process} on {self.box}"

    @property
    def reader(self) -> bool:
        """It only reads figures or asks whether the engine is well, as far as can be known."""
        if self.process is not None and self.process.comm in READERS:
            return True
        if self.requests is not None and (self.requests.work or self.requests.reads):
            return not self.requests.work
        return bool(self.asked) and WORK not in self.asked


def question(fleet: Fleet, live: Release, observed: Observed, box: str) -> dict[str, Any] | None:
    """Arguments of the op ``examine_clients`` for a box; None: there is no engine whose clients could be seen."""
    if not live.engines or box not in observed:
        return None
    ports = {str(engine.port): engine.head.unit for engine in live.engines if engine.head.box == box}
    targets = {(address, engine.port) for engine in live.engines for address in _ends(engine, observed, box)}
    return {
        "ports": ports,
        "targets": [list(one) for one in sorted(targets)],
        "known": sorted(fleet_addresses(fleet, observed)),
    }


def fleet_addresses(fleet: Fleet, observed: Observed) -> dict[str, str]:
    """Address → box, for those of the boxes that answer and of all that run the proxy."""
    found: dict[str, str] = {}
    for name, box in fleet.boxes.items():
        if name in observed or name in fleet.proxy.on:
            own = observed[name].addresses if name in observed else ()
            found |= {address: name for address in (box.address, box.link, *own) if address}
    return found


def _ends(engine: Engine, observed: Observed, box: str) -> Iterator[str]:
    """Addresses at which an engine may be reached from a box."""
    head = engine.head.box
    yield engine.address
    if head in observed:
        yield from observed[head].addresses
    if head == box:
        yield from ("127.0.0.1", "::1")


def words(fleet: Fleet, releases: Iterable[Release], observed: Observed | None = None) -> list[list[Any]]:
    """Host, port and engine for every way in which a configuration may name an engine of any layout."""
    found: dict[tuple[str, int], dict[str, None]] = {}
    for release in releases:
        for engine in release.engines:
            name = engine.head.box
            box = fleet.boxes.get(name)
            hosts = {engine.address, name, *((box.address, box.link or "") if box else ())}
            if observed and name in observed:
                hosts |= {observed[name].hostname, *observed[name].addresses}
            for host in sorted(hosts - {""}):
                found.setdefault((host, engine.port), {})[engine.id] = None
    proxy = next((release.proxy for release in releases if release.proxy), None)
    mine = {(address, proxy.port) for address in proxy.listens} if proxy else set()
    return [[host, port, ", ".join(ids)] for (host, port), ids in found.items() if (host, port) not in mine]


def clients(live: Release, fleet: Fleet, observed: Observed, told: Mapping[str, ClientsTold]) -> list[Client]:
    """Everybody who was seen, those with most connections first. Who comes through the proxy is not among them."""
    # What a process was seen to have open is told with its process, and not once more by the engine's box.
    named = {connection.client for one in told.values() for connection in one.seen if not connection.incoming}
    asked = _asked_over(told)
    ends = {
        (address, engine.port): engine.id
        for engine in live.engines
        for address in _ends(engine, observed, engine.head.box)
    }
    known = fleet_addresses(fleet, observed)
    found: dict[Key, Client] = {}
    seen = [(box, connection) for box, one in told.items() for connection in one.seen]
    seen.sort(key=lambda one: one[1].incoming)
    # A container with a network of its own comes to the engine of its box with an address that is no box's.
    containers = {(box, c.local[0]): _key(box, c) for box, c in seen if not c.incoming and c.local[0] not in known}
    for box, connection in seen:
        if not (connection.incoming and connection.client in named):
            key = containers.get((box, connection.client[0])) or _key(box, connection)
            _add(found, key, box, connection, ends.get(connection.engine, ""), asked)
    for box, one in told.items():
        for port, log in one.asked.items():
            engine = next((e.id for e in live.engines if e.head.box == box and e.port == port), "")
            for address, requests in log.clients.items():
                if address not in known:
                    key = containers.get((box, address)) or ("", address, "")
                    _add_requests(found, key, address, requests, engine)
    return sorted(found.values(), key=lambda client: (-client.connections, client.name))


Key = tuple[str, str, str]
"""Box, unit and short name of a process; or an address in the middle."""


def _key(box: str, connection: Connection) -> Key:
    process = connection.process
    return (box, process.unit or str(process.pid), process.comm) if process else ("", connection.client[0], "")


def _asked_over(told: Mapping[str, ClientsTold]) -> dict[tuple[str, int], str]:
    found: dict[tuple[str, int], str] = {}
    for one in told.values():
        for log in one.asked.values():
            for name, kind in log.connections.items():
                address, _, port = name.rpartition(" ")
                found[(address, int(port))] = kind
    return found


def _add(
    found: dict[Key, Client],
    key: Key,
    box: str,
    connection: Connection,
    engine: str,
    asked: Mapping[tuple[str, int], str],
) -> None:
    process = connection.process
    address = connection.client[0]
    before = found.get(key)
    if before is None:
        before = Client(address, box if process else None, process, (), connection.first, connection.last)
    kind = asked.get(connection.client)
    found[key] = replace(
        before,
        engines=tuple(sorted({*before.engines, engine} - {""})),
        first=min(before.first, connection.first),
        last=max(before.last, connection.last),
        open=before.open + connection.open,
        connections=before.connections + 1,
        up=_sum(before.up, connection.up),
        down=_sum(before.down, connection.down),
        asked=before.asked | ({kind} if kind else set()),
    )


def _add_requests(found: dict[Key, Client], key: Key, address: str, requests: Requests, engine: str) -> None:
    last = requests.worked or requests.last
    before = found.get(key) or Client(address, None, None, (), last, last)
    found[key] = replace(
        before,
        engines=tuple(sorted({*before.engines, engine} - {""})),
        last=max(before.last, last),
        requests=(before.requests or Requests()).and_(requests),
    )


def _sum(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else one + other
