"""The file that gives an interface the address of the direct link, in the form of whatever manages the interface."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

HEAD = "# Made by fleetctl setup; `fleetctl teardown` takes it away.\n"
NAME = "fleetctl-link"
_NAMESPACE = uuid.UUID("5b0c0f0e-6f0b-4b0e-9f4e-0d5f7f3b9a11")


@dataclass(frozen=True)
class Link:
    """An interface, its address with prefix (``192.168.100.1/24``) and its MTU in bytes (None: as it is)."""

    interface: str
    address: str
    mtu: int | None


MANAGERS = ("netplan", "NetworkManager", "systemd-networkd", "ifupdown")


def link_part(link: Link, kind: str, uses: str | None) -> dict[str, Any]:
    """What ``onbox/setup_link.py`` takes: the file for good and on trial, and the commands around them.

    ``apply`` makes the trial's file count, ``kept`` the one for good, ``leave`` what is left when it is gone.
    """
    path, content, mode = _file(link, kind, uses)
    trial = None if kind == "ifupdown" else {"path": _trial(path), "content": content, "mode": mode}
    part = {
        "part": f"link {link.interface}",
        "kind": "link",
        "interface": link.interface,
        "address": link.address,
        "mtu": link.mtu,
        "file": {"path": path, "content": content, "mode": mode},
        "trial": trial,
    }
    return {**part, **_commands(link, kind, uses)}


def _file(link: Link, kind: str, uses: str | None) -> tuple[str, str, int]:
    mtu = link.mtu
    if kind == "netplan":
        lines = ["network:", "  version: 2", "  ethernets:", f"    {link.interface}:"]
        lines += [f"      addresses: [{link.address}]", *([f"      mtu: {mtu}"] if mtu else []), "      optional: true"]
        return f"/etc/netplan/90-{NAME}.yaml", HEAD + "\n".join(lines) + "\n", 0o600
    if kind == "NetworkManager":
        identity = uuid.uuid5(_NAMESPACE, link.interface)
        lines = ["[connection]", f"id={NAME}", f"uuid={identity}", "type=ethernet"]
        lines += [f"interface-name={link.interface}", "autoconnect-priority=10"]
        lines += ["", "[ethernet]", *([f"mtu={mtu}"] if mtu else [])]
        lines += ["", "[ipv4]", "method=manual", f"address1={link.address}", "never-default=true"]
        lines += ["", "[ipv6]", "method=link-local"]
        folder = "/etc/NetworkManager/system-connections"
        return f"{folder}/{NAME}.nmconnection", HEAD + "\n".join(lines) + "\n", 0o600
    if kind == "systemd-networkd":
        lines = ["[Match]", f"Name={link.interface}", ""] if uses is None else []
        lines += ["[Link]", *([f"MTUBytes={mtu}"] if mtu else []), "RequiredForOnline=no", ""]
        lines += ["[Network]", f"Address={link.address}"]
        # Of several .network files that match, the first by name counts; a drop-in adds to the one that counts now.
        name = f"05-{NAME}.network" if uses is None else f"{PurePosixPath(uses).name}.d/{NAME}.conf"
        return f"/etc/systemd/network/{name}", HEAD + "\n".join(lines) + "\n", 0o644
    lines = [f"auto {link.interface}", f"iface {link.interface} inet static", f"    address {link.address}"]
    lines += [f"    mtu {mtu}"] if mtu else []
    return f"/etc/network/interfaces.d/{NAME}", HEAD + "\n".join(lines) + "\n", 0o644


def _trial(path: str) -> str:
    """The place under /run that the same program reads: what lies there is gone after a boot."""
    return path.replace("/etc/", "/run/", 1)


def _commands(link: Link, kind: str, uses: str | None) -> dict[str, list[list[str]]]:
    apply: list[list[str]]
    kept: list[list[str]] = []
    leave: list[list[str]] = []
    if kind == "netplan":
        apply = leave = [["netplan", "apply"]]
        kept = [["netplan", "generate"]]
    elif kind == "NetworkManager":
        kept = [["nmcli", "connection", "reload"]]
        apply = [*kept, ["nmcli", "--wait", "20", "connection", "up", NAME]]
        leave = [*kept, *([["nmcli", "--wait", "20", "connection", "up", uses]] if uses and uses != NAME else [])]
    elif kind == "systemd-networkd":
        kept = [["networkctl", "reload"]]
        apply = leave = [*kept, ["networkctl", "reconfigure", link.interface]]
    else:
        mtu = [["ip", "link", "set", link.interface, "mtu", str(link.mtu)]] if link.mtu else []
        add = ["ip", "address", "replace", link.address, "dev", link.interface]
        apply = [["ip", "link", "set", link.interface, "up"], *mtu, add]
    return {"apply": apply, "kept": kept, "leave": leave}
