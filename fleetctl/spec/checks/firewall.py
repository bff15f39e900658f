"""Checks of ``firewall``."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from fleetctl.spec.checks.boxes import wrong_address
from fleetctl.spec.checks.layouts import listeners
from fleetctl.spec.checks.view import View
from fleetctl.spec.problems import Path, Problem, shown

_SSH = 22


def section(view: View) -> Iterator[Problem]:
    """``firewall`` is a mapping; with nothing in it, ``{}``, the boxes of the fleet alone reach the engines."""
    if "firewall" in view.mapping() and view.get("firewall") is None:
        message = "this is empty; write firewall: {} to close the engines' ports to all but the fleet, or take it out"
        yield view.problem(("firewall",), message, key=True)


def allowed(view: View) -> Iterator[Problem]:
    """``firewall.allow`` has addresses and networks, not names, each once and none that lets everybody in."""
    seen: dict[str, int] = {}
    for path, text in view.texts("firewall", "allow"):
        wrong = wrong_network(text)
        if wrong:
            yield view.problem(path, f"{shown(text)} is not right: {wrong}")
            continue
        network = str(ipaddress.ip_network(text))
        index = path[-1]
        assert isinstance(index, int)
        first = seen.setdefault(network, index)
        if first != index:
            yield view.problem(path, f"{text} is already in firewall.allow[{first}]; keep one")


def wrong_network(text: str) -> str | None:
    """What is wrong with an address or network that may reach engines, and what to write; None when it is right."""
    try:
        interface = ipaddress.ip_interface(text)
    except ValueError:
        if "/" not in text and wrong_address(text) is None:
            return "a name has to be looked up, and a box that boots has nobody to ask; write its IP address"
        return "write an address, like 192.0.2.10, or a network, like 10.0.5.0/24 or fd00:5::/64"
    network = interface.network
    if isinstance(interface, ipaddress.IPv6Interface):
        if interface.scope_id:
            return f"nftables knows no {interface.scope_id} in an address; write it without"
        if interface.ip.ipv4_mapped:
            return f"such packets come as IPv4; write {interface.ip.ipv4_mapped}"
    if network.prefixlen == 0:
        return "that is everybody; take firewall: out for no firewall"
    if interface.ip != network.network_address:
        return f"{interface.ip} is one address in {network}; write {network} for all of it or {interface.ip} alone"
    return None


def box_addresses(view: View) -> Iterator[Problem]:
    """With ``firewall`` the address and link of every box are IP addresses, which are known before the network is."""
    if "firewall" not in view.mapping():
        return
    for box in view.mapping("boxes"):
        for key in ("address", "link"):
            path: Path = ("boxes", box, key)
            value = view.text(*path)
            if value is not None and wrong_address(value) is None and not _is_ip(value):
                message = (
                    f"{shown(value)} is a name, and firewall: needs addresses (a box that boots has nobody to ask); "
                    f"write the IP address of {box}, or take firewall: out"
                )
                yield view.problem(path, message)


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def ssh_ports(view: View) -> Iterator[Problem]:
    """With ``firewall`` no engine listens on the SSH port of its box, which has to stay open."""
    if "firewall" not in view.mapping():
        return
    for entry in view.placements():
        for box, key, port, what in listeners(view, entry):
            if port == (view.number("boxes", box, "ssh", "port") or _SSH):
                path: Path = (*entry.path, key) if key in entry.values else entry.path
                yield view.problem(path, f"port {port} on {box} is that of SSH; write another {key}: for {what}")


CHECKS = (section, allowed, box_addresses, ssh_ports)
