"""The firewall of a box: which ports it closes and to whom, and the files that make nftables do it."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Iterable

from fleetctl.errors import SpecError
from fleetctl.render.names import FIREWALL_FILE, FIREWALL_UNIT, UNIT_FOLDER
from fleetctl.render.ports import engine_ports, pool_ports, rendezvous_port
from fleetctl.render.release import File, Firewall, Guarded
from fleetctl.render.template import fill
from fleetctl.spec.fleet import Fleet

FIREWALL_PATHS = (FIREWALL_FILE, f"{UNIT_FOLDER}/{FIREWALL_UNIT}")
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def firewall_of(fleet: Fleet) -> Firewall | None:
    """The firewall of all boxes, or None where the file has none. Raises SpecError for a box without an IP address.

    It covers every layout, so that a move from one to another does not change it.
    """
    if fleet.firewall is None:
        return None
    guarded = {box: ports for box in fleet.boxes if (ports := _guarded(fleet, box)).engines or ports.ranks}
    addresses = {_address(name, text) for name, box in fleet.boxes.items() for text in (box.address, box.link) if text}
    return Firewall(
        guarded=guarded,
        fleet=tuple(map(str, sorted(addresses, key=lambda one: (one.version, int(one))))),
        allow=tuple(map(str, _collapsed(ipaddress.ip_network(text) for text in fleet.firewall.allow))),
    )


def _guarded(fleet: Fleet, box: str) -> Guarded:
    """Ports on which engines with their head on a box listen, in any layout, and those of a pool's programs."""
    engines: set[int] = set()
    ranks: set[int] = set()
    for layout, models in fleet.layouts.items():
        ports = engine_ports(fleet, layout)
        if fleet.pool_models(layout):
            engines |= set(pool_ports(fleet)["gateway"]) if box in fleet.gateways else set()
        for model, placement in models.items():
            if placement.pool is not None:
                continue  # its engines listen on the loopback interface
            split = placement.split is not None
            if box in (list(placement.boxes)[:1] if split else placement.boxes):
                engines.add(ports[model])
                if split:
                    ranks |= {placement.master_port, rendezvous_port(placement.master_port)}
    meets = fleet.pool is not None and box in fleet.pool.nats.boxes
    ranks |= set(pool_ports(fleet)["nats"]) if meets else set()
    return Guarded(engines=tuple(sorted(engines)), ranks=tuple(sorted(ranks)), nats=meets)


def _address(box: str, text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        raise SpecError(
            f"box {box}: the firewall needs an IP address, and {text} is a name",
            hint="write the IP address of the box, or take firewall: out",
        ) from None


def _collapsed(networks: Iterable[Network]) -> list[Network]:
    """The same addresses in as few networks as will do: nftables takes none that overlap."""
    known = list(networks)
    four = [network for network in known if isinstance(network, ipaddress.IPv4Network)]
    six = [network for network in known if isinstance(network, ipaddress.IPv6Network)]
    return [*ipaddress.collapse_addresses(four), *ipaddress.collapse_addresses(six)]


def firewall_files(firewall: Firewall, box: str) -> tuple[File, ...]:
    """Table and unit of one box. The table has a mark that changes with it, by which a loaded one is known."""
    ports = firewall.guarded[box]
    values = {
        "box": box,
        "engines": ports.engines,
        "ranks": ports.ranks,
        "nats": ports.nats,
        "fleet": _by_family(firewall.fleet),
        "allow": _by_family(firewall.allow),
    }
    digest = hashlib.sha256(fill("nftables", "firewall.nft.j2", mark="", **values).encode()).hexdigest()
    table = fill("nftables", "firewall.nft.j2", mark=digest[:12], **values)
    unit = fill("systemd", "firewall.service.j2", box=box, file=FIREWALL_FILE)
    return File(path=FIREWALL_PATHS[0], content=table), File(path=FIREWALL_PATHS[1], content=unit)


def _by_family(texts: Iterable[str]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {4: [], 6: []}
    for text in texts:
        network = ipaddress.ip_network(text)
        alone = network.num_addresses == 1
        found[network.version].append(str(network.network_address if alone else network))
    return found


def mark_of(files: Iterable[File]) -> str | None:
    """The mark of the table among the files of a box; None where there is no table."""
    for file in files:
        if file.path == FIREWALL_FILE:
            found = re.search(r'comment "fleetctl ([0-9a-f]+)"', file.content)
            return found[1] if found else None
    return None
