"""The floating address: whether it can be there, and who else may want it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping

from fleetctl.doctor.finding import Finding, Kind, Severity
from fleetctl.doctor.proxy.told import ProxyTold
from fleetctl.doctor.scene import Scene

OUTSIDE = Kind(
    "X10",
    Severity.ERROR,
    "the floating address is in no network of its boxes",
    looks_for="a floating address that is outside the network of a box's own address",
    why="machines of the network do not look for it there: clients reach it only by chance, or not at all",
    fix="take an address of the boxes' network that no machine has",
    source="docs/proxy.md; `ip address`",
)
RIVAL = Kind(
    "X11",
    Severity.ERROR,
    "another keepalived wants the same",
    looks_for="the distribution's keepalived beside fleetctl's, with the same virtual_router_id or the same address",
    why="both answer for one router or one address: the address jumps, or is on two boxes at once",
    fix="take it out of /etc/keepalived, or give fleetctl's another router_id",
    source="docs/proxy.md; RFC 5798",
)
KINDS = (OUTSIDE, RIVAL)


def address(scene: Scene, told: Mapping[str, ProxyTold]) -> Iterator[Finding]:
    """What is wrong with the floating address of the live layout."""
    proxy = scene.live.proxy
    if proxy is None or proxy.floating is None:
        return
    floating = proxy.floating
    wanted = ipaddress.ip_address(floating.address)
    for box in proxy.boxes:
        if box in told:
            yield from _outside(box, wanted, proxy.own.get(box), told[box])
        other = scene.observed[box].vrrp if box in scene.observed else None
        if other is None:
            continue
        same = []
        if floating.router_id in other.router_ids:
            same.append(f"virtual_router_id {floating.router_id}")
        if floating.address in other.addresses:
            same.append(floating.address)
        if same:
            another = f"`router_id: {_free(floating.router_id, other.router_ids)}` under floating: in fleet.yaml"
            yield RIVAL.found(
                box,
                "keepalived.service",
                f"keepalived.service on {box} has {' and '.join(same)}, as fleetctl-vrrp.service has",
                *(f"/etc/keepalived: {one}" for one in same),
                fix=f"take it out of /etc/keepalived there and `systemctl reload keepalived`, or write {another}",
            )


def _outside(
    box: str, wanted: ipaddress.IPv4Address | ipaddress.IPv6Address, own: str | None, told: ProxyTold
) -> Iterator[Finding]:
    mine = [network for network in told.networks if network.address == own]
    if not mine:
        return  # the plan of a move says so
    networks = [ipaddress.ip_network(f"{one.address}/{one.prefix}", strict=False) for one in mine]
    if any(wanted.version == network.version and wanted in network for network in networks):
        return
    shown = ", ".join(f"{one.address}/{one.prefix} on {one.interface}" for one in mine)
    yield OUTSIDE.found(
        box,
        "proxy: floating",
        f"the floating address {wanted} is not in the network of {box} ({', '.join(map(str, networks))})",
        f"{box}: {shown}",
        fix=f"write a free address of {networks[0]} as `address:` under floating: in fleet.yaml, then `fleetctl apply`",
    )


def _free(taken: int, others: tuple[int, ...]) -> int:
    return next(number for number in range(taken + 1, 256) if number not in others) if taken < 255 else 1
