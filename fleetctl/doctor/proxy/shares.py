"""Where requests really go, by the proxy's own log: copies that get none, one that gets all, and metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from fleetctl.doctor.finding import Finding, Kind, Severity
from fleetctl.doctor.proxy.told import ProxyTold, RunningServer
from fleetctl.doctor.scene import Scene
from fleetctl.facts.proxies import AGAIN

# So unlikely has an uneven share to be, if requests were given out evenly, before it is told.
CHANCE = 1e-6
FEWEST = 30  # requests

IDLE = Kind(
    "X07",
    Severity.WARNING,
    "a copy that is up gets no requests",
    looks_for="a server that is up and has got none of the requests of the last hour, while others had so many that "
    "chance cannot explain it (less than one in a million)",
    why="it is paid for and does nothing, and the others are slower than they need be",
    fix="see which setting sends requests past it; with `balance: leastconn` nothing should",
    source="the log of HAProxy; an office's cutover: all load went to one copy while the other sat idle",
)
ALL = Kind(
    "X08",
    Severity.WARNING,
    "one copy has all the traffic",
    looks_for="one server that has got all requests of the last hour while others were up as well, with so many "
    "requests that chance cannot explain it",
    why="half of the fleet is idle, and clients wait in the queue of the other half",
    fix="see which setting sends requests there; with `balance: leastconn` nothing should",
    source="the log of HAProxy; an office's cutover: all load went to one copy while the other sat idle",
)
METRICS = Kind(
    "X09",
    Severity.WARNING,
    "metrics are read through the proxy",
    looks_for="GET requests for /metrics in the proxy's log of the last hour",
    why="each read may come from another copy: counters jump and go backwards, and a monitor takes the model for "
    "starved",
    fix="read each copy's own /metrics and add them up, as `fleetctl top` and `fleetctl exporter` do",
    source="an office's cutover: the throughput monitor read /metrics through the proxy",
)
KINDS = (IDLE, ALL, METRICS)


def shares(scene: Scene, told: Mapping[str, ProxyTold]) -> Iterator[Finding]:
    """What the logs of the proxies tell."""
    live = scene.live.proxy
    if live is None:
        return
    for box, one in told.items():
        if box in live.boxes and one.running is not None and one.traffic is not None:
            if live.balance != "prefix":  # there a conversation has its copy, and one client may have one of them
                for backend in live.backends:
                    up = [s for s in one.running.servers if s.backend == backend.name and s.up and s.server != AGAIN]
                    yield from _uneven(scene, box, backend.name, up, one)
            yield from _metrics(scene, box, one)


def _uneven(scene: Scene, box: str, backend: str, up: list[RunningServer], told: ProxyTold) -> Iterator[Finding]:
    assert told.traffic is not None
    sent = {server.server: told.traffic.sent.get(backend, {}).get(server.server, 0) for server in up}
    total = sum(sent.values())
    if len(up) < 2 or total < FEWEST or (1 - 1 / len(up)) ** total > CHANCE:
        return
    if len({server.weight for server in up}) > 1:
        return  # somebody wants it so
    idle = [name for name, count in sent.items() if count == 0]
    if not idle:
        return
    since = time.strftime("%H:%M:%S", time.localtime(told.traffic.since.get(backend, told.traffic.now)))
    evidence = [f"{backend}/{name}: {count} requests since {since}" for name, count in sent.items()]
    drifted = [path for path in scene.observed[box].drift if "/proxy/" in path] if box in scene.observed else []
    reload = f"on {box}: `systemctl reload {scene.live.proxy.unit if scene.live.proxy else ''}`"
    fix = (
        f"{', '.join(drifted)} was edited on {box}: `fleetctl apply` puts it back; then {reload} loads it"
        if drifted
        else f"{reload} loads the configuration again, which runs otherwise than it stands in the file"
    )
    if len(idle) == len(up) - 1:
        busy = next(name for name, count in sent.items() if count)
        says = f"{backend}/{busy} got all of {total} requests, and {', '.join(idle)} none, although up"
        yield ALL.found(box, f"{backend}/{busy}", says, *evidence, fix=fix)
        return
    for name in idle:
        says = f"{backend}/{name} is up and got none of {total} requests"
        yield IDLE.found(box, f"{backend}/{name}", says, *evidence, fix=fix)


def _metrics(scene: Scene, box: str, told: ProxyTold) -> Iterator[Finding]:
    assert told.traffic is not None
    boxes = {own: name for name, one in scene.fleet.boxes.items() for own in (one.address, one.link) if own}
    urls = [f"{engine.url}/metrics" for engine in scene.live.engines]
    for client, scrape in told.traffic.metrics.items():
        if scrape.count < 2:
            continue  # somebody was curious
        who = f"{client} ({boxes[client]})" if client in boxes else client
        last = time.strftime("%H:%M:%S", time.localtime(scrape.last))
        answered = [f"{count} by {server}" for server, count in scrape.servers.items() if not server.startswith("<")]
        how = f"answered: {', '.join(answered)}" if scrape.answered else "none was answered"
        yield METRICS.found(
            box,
            client,
            f"{who} reads /metrics through the proxy",
            f"{scrape.count} reads from {client}, the last at {last}; {how}",
            fix=f"let it read every copy itself: {', '.join(urls) or 'each copy at its own address'}",
            severity=Severity.WARNING if scrape.answered else Severity.NOTE,
        )
