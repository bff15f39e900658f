"""Asking the boxes: one round trip each, in parallel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from fleetctl.errors import BoxError, FleetError
from fleetctl.facts.types import BoxFacts, Observed, first_fault
from fleetctl.remote.boxes import Boxes
from fleetctl.remote.connection import BoxConnection
from fleetctl.render.names import FIREWALL_UNIT
from fleetctl.render.release import ProxyConfig, Release
from fleetctl.spec.fleet import Fleet

# Others that end something when memory runs short: with a guard on the box they are looked for.
OOM_DAEMONS = {"earlyoom.service", "nohang.service", "nohang-desktop.service", "systemd-oomd.service"}
ADMIN_SOCKET = ProxyConfig.model_fields["admin_socket"].default


def question(foreign: Iterable[str], box: str, releases: Iterable[Release] = ()) -> dict[str, Any]:
    """Arguments of the ``facts`` op for a box: what the file and the releases say is of interest there."""
    releases = list(releases)
    paths: set[str] = set()
    ports: set[int] = set()
    floating: set[str] = set()
    units: set[str] = set()
    images: set[tuple[str, str]] = set()
    for release in releases:
        for engine, _ in (*release.ranks_on(box), *release.lodgers_on(box)):
            paths.update(path for path in (engine.binary, engine.weights) if path and path.startswith("/"))
            images.update({(engine.image[0], engine.image_reference)} if engine.image else ())
        ports.update(*(engine.listens for engine, rank in release.ranks_on(box) if rank.rank == 0))
        services = release.pool.on(box) if release.pool else []
        paths.update(service.program for service in services if service.kind == "nats")
        ports.update(service.port for service in services if service.port)
        units.update(service.unit for service in services)
        units.update(rank.unit for _, rank in release.lodgers_on(box))
    wanted = units | {rank.unit for release in releases for _, rank in release.ranks_on(box)}
    guarded = any(release.firewall and box in release.firewall.guarded for release in releases)
    wanted |= {FIREWALL_UNIT} if guarded else set()
    for proxy in (release.proxy for release in releases):
        if proxy and box in proxy.boxes:
            ports.add(proxy.port)
            wanted |= {proxy.unit} | ({proxy.vrrp_unit} if proxy.floating else set())
            floating |= {proxy.floating.address} if proxy.floating else set()
    if any(release.proxy and release.proxy.guard_port is not None for release in releases):
        wanted |= OOM_DAEMONS
    superseded = set(foreign).union(*(release.superseded.get(box, ()) for release in releases))
    return {
        "foreign": sorted(superseded),
        "units": sorted(wanted),
        "paths": sorted(paths),
        "ports": sorted(ports),
        "socket_path": ADMIN_SOCKET,
        "firewall_wanted": guarded,
        "floating_addresses": sorted(floating),
        "images": sorted(list(image) for image in images),
    }


def questions(fleet: Fleet, releases: Iterable[Release] = ()) -> dict[str, dict[str, Any]]:
    """The question for every box of the fleet."""
    releases = list(releases)
    return {box: question(fleet.superseded_on(box), box, releases) for box in fleet.boxes}


def gather(
    boxes: Boxes, asked: dict[str, dict[str, Any]], secrets: Mapping[str, dict[str, dict[str, str]]] | None = None
) -> Observed:
    """Facts of every connected box. Raises FleetError naming each box that did not answer.

    ``secrets`` (box → path → salted digest) are asked for here only: the rest of a question is kept with the plan.
    """
    also = secrets or {}

    def ask(box: BoxConnection) -> Any:
        more: dict[str, Any] = {"secrets": also[box.name]} if box.name in also else {}
        return box.call("facts", timeout=60, **asked[box.name], **more)

    told = boxes.each(ask)
    return {name: _facts(name, facts) for name, facts in told.items()}


def gather_some(boxes: Boxes, asked: dict[str, dict[str, Any]]) -> tuple[Observed, dict[str, FleetError]]:
    """Facts of the connected boxes that answer, and why the others did not."""
    failed: dict[str, FleetError] = {}

    def ask(box: BoxConnection) -> BoxFacts | None:
        try:
            return _facts(box.name, box.call("facts", timeout=60, **asked[box.name]))
        except FleetError as error:
            failed[box.name] = error
            return None

    told = boxes.each(ask)
    return {name: facts for name, facts in told.items() if facts is not None}, failed


def _facts(box: str, told: dict[str, Any]) -> BoxFacts:
    """Raises BoxError when what the box keeps is by a fleetctl that this one does not understand."""
    try:
        return BoxFacts.model_validate(told)
    except ValidationError as error:
        raise BoxError(
            box,
            f"what is kept there is by another version of fleetctl: {first_fault(error)}",
            hint="use the version that the fleet was last changed with",
        ) from error
