"""Asking the boxes: one round trip each, in parallel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fleetctl.facts.types import BoxFacts, Observed
from fleetctl.remote.boxes import Boxes
from fleetctl.render.release import ProxyConfig, Release
from fleetctl.spec.fleet import Fleet

ADMIN_SOCKET = ProxyConfig.model_fields["admin_socket"].default


def question(foreign: Iterable[str], box: str, releases: Iterable[Release] = ()) -> dict[str, Any]:
    """Arguments of the ``facts`` op for a box: what the file and the releases say is of interest there."""
    releases = list(releases)
    paths: set[str] = set()
    ports: set[int] = set()
    for release in releases:
        for engine, _ in release.ranks_on(box):
            paths.update(path for path in (engine.binary, engine.weights) if path and path.startswith("/"))
        ports.update(engine.port for engine, rank in release.ranks_on(box) if rank.rank == 0)
        ports.update(e.master_port for e, rank in release.ranks_on(box) if e.master_port and rank.rank == 0)
        if release.proxy and release.proxy.box == box:
            ports.add(release.proxy.port)
    wanted = {rank.unit for release in releases for _, rank in release.ranks_on(box)}
    wanted |= {r.proxy.unit for r in releases if r.proxy and r.proxy.box == box}
    units = set(foreign).union(*(release.superseded.get(box, ()) for release in releases))
    return {
        "foreign": sorted(units),
        "units": sorted(wanted),
        "paths": sorted(paths),
        "ports": sorted(ports),
        "socket_path": ADMIN_SOCKET,
    }


def questions(fleet: Fleet, releases: Iterable[Release] = ()) -> dict[str, dict[str, Any]]:
    """The question for every box of the fleet."""
    releases = list(releases)
    return {box: question(fleet.superseded_on(box), box, releases) for box in fleet.boxes}


def gather(boxes: Boxes, asked: dict[str, dict[str, Any]]) -> Observed:
    """Facts of every connected box. Raises FleetError naming each box that did not answer."""
    told = boxes.each(lambda box: box.call("facts", timeout=60, **asked[box.name]))
    return {name: BoxFacts.model_validate(facts) for name, facts in told.items()}
