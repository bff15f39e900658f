"""What is wrong between two ends of the link: ways, addresses that two have, MTUs, firewalls. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from itertools import combinations

from fleetctl.doctor.finding import Finding
from fleetctl.doctor.link import kinds
from fleetctl.doctor.link.box import lasting
from fleetctl.doctor.link.told import LinkTold, Route, Way
from fleetctl.spec.fleet import Fleet

FAST = 100_000  # Mbit/s from which the MTU matters
JUMBO = 9000


def between(fleet: Fleet, told: Mapping[str, LinkTold]) -> Iterator[Finding]:
    """Findings about pairs of boxes that both told of a link that is up."""
    twice = set()
    for finding in _addresses(told):
        twice.add(finding.where)
        yield finding
    up = {box: one for box, one in told.items() if one.own is not None and one.own.carrier}
    differ: set[frozenset[str]] = set()
    for first, second in combinations(up, 2):
        for finding in _ends(first, up[first], second, up[second]):
            if finding.code == kinds.MTU.code:
                differ.add(frozenset((first, second)))
            yield finding
    for box, one in up.items():
        for other, way in one.ways.items():
            # Where an address is not one machine's, what comes back of packets says nothing.
            if other in up and twice.isdisjoint((one.address, up[other].address)):
                same = frozenset((box, other)) not in differ
                yield from _way(box, one, other, up[other], way, same_mtu=same)
                if _split_over(fleet, box, other):
                    yield from _firewall(box, one, other, up[other], way)


def _addresses(told: Mapping[str, LinkTold]) -> Iterator[Finding]:
    """Link addresses that two machines have: another box of the fleet says so, or a stranger answers."""
    said: set[tuple[str, str]] = set()
    for box, one in told.items():
        address = one.address
        if address is None:
            continue
        for other, there in told.items():
            name = next((name for name, interface in there.interfaces.items() if address in interface.addresses), None)
            if other != box and name is not None:
                said |= {(address, mac) for mac in there.macs()}
                bits = there.interfaces[name].addresses[address]
                yield kinds.TWICE.found(
                    other,
                    address,
                    f"it has {address}, which is the link address of {box}",
                    f"{name}: {address}/{bits}",
                    fix=f"on {other}: {lasting(f'ip address del {address}/{bits} dev {name}')}",
                )
    owner = {one.address: box for box, one in told.items() if one.own is not None}
    for box, one in told.items():
        for address, macs in (one.heard or {}).items():
            here = owner.get(address)
            if here is None:
                continue
            for mac in sorted(set(macs) - told[here].macs()):
                if (address, mac) in said:
                    continue
                said.add((address, mac))
                yield kinds.TWICE.found(
                    here,
                    address,
                    f"another machine answers for its link address {address}",
                    f"{mac} answers on {one.interface} of {box}; {here} has {', '.join(sorted(told[here].macs())[:4])}",
                    fix=f"find the machine with {mac} (its first three bytes name the maker; `ip neigh` on a router) "
                    f"and take {address} from it, or give {here} another link address, in fleet.yaml too",
                )


def _ends(first: str, one: LinkTold, second: str, two: LinkTold) -> Iterator[Finding]:
    mine, theirs = one.own, two.own
    assert mine is not None and theirs is not None
    if mine.mtu != theirs.mtu:
        small, name, least = (first, one.interface, mine) if mine.mtu < theirs.mtu else (second, two.interface, theirs)
        most = max(mine.mtu, theirs.mtu)
        yield kinds.MTU.found(
            small,
            str(name),
            f"{name} has MTU {least.mtu}, and the other end of the link {most}",
            f"{first}: {one.interface} mtu {mine.mtu}",
            f"{second}: {two.interface} mtu {theirs.mtu}",
            fix=f"on {small}: {lasting(f'ip link set {name} mtu {most}')}",
        )
    elif mine.mtu < JUMBO and min(mine.speed or 0, theirs.speed or 0) >= FAST:
        yield kinds.SMALL_MTU.found(
            None,
            f"{first}, {second}",
            f"the link between {first} and {second} has {_gbit(mine.speed)} and MTU {mine.mtu}",
            f"{first}: {one.interface} mtu {mine.mtu}; {second}: {two.interface} mtu {theirs.mtu}",
            fix=f"while no split runs, on {first}: {lasting(f'ip link set {one.interface} mtu {JUMBO}')}; on "
            f"{second}: `ip link set {two.interface} mtu {JUMBO}`",
        )
    if mine.speed and theirs.speed and mine.speed != theirs.speed:
        slow, name = (first, one.interface) if mine.speed < theirs.speed else (second, two.interface)
        yield kinds.SLOW.found(
            slow,
            str(name),
            f"the ends of the link name different speeds: {_gbit(mine.speed)} and {_gbit(theirs.speed)}",
            f"{first}: {one.interface} speed {mine.speed}",
            f"{second}: {two.interface} speed {theirs.speed}",
            fix=f"`ethtool {name}` on {slow} shows what it negotiated and what it can",
        )
    elif mine.speed and mine.can and theirs.can and mine.speed < min(mine.can, theirs.can):
        yield kinds.SLOW.found(
            first,
            str(one.interface),
            f"{one.interface} negotiated {_gbit(mine.speed)} with {second}, and both ends can "
            f"{_gbit(min(mine.can, theirs.can))}",
            f"ethtool: {one.interface} supports up to {mine.can} Mbit/s, speed {mine.speed}",
            fix="a cable (or module) that both ends know for that speed; seat it anew at both ends",
        )


def _way(box: str, one: LinkTold, other: str, there: LinkTold, way: Way, *, same_mtu: bool) -> Iterator[Finding]:
    """What one box found on its way to another."""
    peer = there.address
    if other_way := _wrong_route(one, way):
        yield kinds.ROUTE.found(
            box,
            str(peer),
            f"packets to {peer}, the link address of {other}, leave over {other_way}, and the link is {one.interface}",
            f"ip route get {peer}: {_shown(way.route)}",
            fix=_one_subnet(box, one, other, there),
        )
        return
    if not way.tried:
        return
    heard = bool((one.heard or {}).get(str(peer)))
    if not way.answers and not heard:
        yield kinds.SILENT.found(
            box,
            str(peer),
            f"nothing comes back from {peer}, the link address of {other}",
            f"echo: {way.small}; ports: {_words(way)}; no ARP answer"
            if one.heard is not None
            else f"ports: {_words(way)}",
            fix=f"`ip neigh show {peer}` on {box} and `ip -brief address` on {other}; is the cable between these "
            f"two, and in the port of {there.interface}?",
        )
        return
    if same_mtu and way.small == "yes" and way.full not in ("yes", "unknown", None):
        yield kinds.FULL_SIZE.found(
            box,
            str(peer),
            f"a packet of {way.size} bytes does not reach {peer} ({other}), and a small one does",
            f"echo of 64 bytes: {way.small}; of {way.size} bytes, not to be divided: {way.full}",
            fix=f"both ends have MTU {way.size}: raise the MTU of the switch between them (its ports and VLAN), or "
            f"set `ip link set {one.interface} mtu 1500` at both ends",
        )


def _split_over(fleet: Fleet, *boxes: str) -> bool:
    """A layout has an engine over all of these boxes."""
    return any(
        placement.split is not None and all(box in placement.split for box in boxes)
        for models in fleet.layouts.values()
        for placement in models.values()
    )


def _firewall(box: str, one: LinkTold, other: str, there: LinkTold, way: Way) -> Iterator[Finding]:
    """Ports that the ranks of a split need, and that stay silent although the other box is there."""
    peer = there.address
    heard = bool((one.heard or {}).get(str(peer)))
    if not way.tried or not (way.answers or heard) or _wrong_route(one, way):
        return
    blocked = [port for port, word in _tried(way).items() if word not in ("open", "refused")]
    if blocked:
        yield kinds.FIREWALL.found(
            other,
            ", ".join(map(str, blocked)),
            f"{box} gets no answer at port {', '.join(map(str, blocked))} of {peer}, although {other} answers"
            if way.answers
            else f"{other} answers ARP at {peer} and nothing else",
            f"from {one.address}: echo {way.small}; ports {_words(way)}",
            fix=f"let the fleet in on {other}, in front of its other rules, for example: `nft insert rule inet "
            f"filter input ip saddr {one.address} accept` or `ufw allow from {one.address}`",
        )


def _wrong_route(one: LinkTold, way: Way) -> str | None:
    """The way that packets take, where it is not the link's."""
    if way.route is None:
        return "no interface (there is no route)"
    if way.route.gateway:
        return f"the gateway {way.route.gateway}"
    return way.route.dev if way.route.dev not in one.of_link() else None


def _one_subnet(box: str, one: LinkTold, other: str, there: LinkTold) -> str:
    """What to write where two link addresses are not in one subnet, or another interface has that subnet too."""
    mine, theirs = one.own, there.own
    assert mine is not None and theirs is not None
    bits = mine.addresses.get(str(one.address), 0)
    try:
        network = ipaddress.ip_network(f"{one.address}/{bits}", strict=False)
        inside = ipaddress.ip_address(str(there.address)) in network
    except ValueError:
        return "write IP addresses of one subnet as link: of both boxes"
    if not inside:
        return (
            f"{there.address} is not in {network}: give {box} and {other} link addresses of one subnet, on "
            f"{one.interface} and {there.interface}, and write them as link: into fleet.yaml"
        )
    return f"another interface of {box} has a part of {network} too (`ip route`): give the link a subnet of its own"


def _shown(route: Route | None) -> str:
    if route is None:
        return "no route"
    return f"dev {route.dev}" + (f" via {route.gateway}" if route.gateway else "")


def _tried(way: Way) -> dict[int, str]:
    return {**way.ports, **({way.any_port[0]: way.any_port[1]} if way.any_port else {})}


def _words(way: Way) -> str:
    return ", ".join(f"{port} {word}" for port, word in _tried(way).items())


def _gbit(mbit: int | None) -> str:
    return f"{(mbit or 0) / 1000:g} Gbit/s"
