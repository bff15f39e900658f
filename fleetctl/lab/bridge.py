"""The one bridge of a lab, with the host's address on it."""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from fleetctl.errors import LabError
from fleetctl.lab.command import run


@dataclass(frozen=True)
class Bridge:
    """A Linux bridge named ``name``, marked as belonging to the lab in ``owner`` (its root folder)."""

    name: str
    subnet: IPv4Network
    link_subnet: IPv4Network
    owner: str

    def __post_init__(self) -> None:
        if not 1 <= len(self.name) <= 15 or "/" in self.name or self.name.split() != [self.name]:
            raise LabError(f"{self.name!r} cannot be the name of a network interface (1 to 15 characters)")
        for net in (self.subnet, self.link_subnet):
            if net.prefixlen > 24:
                raise LabError(f"{net} is too small for a lab", hint="Use a /24.")

    @property
    def host_address(self) -> IPv4Address:
        return self.subnet.network_address + 1

    def box_address(self, index: int) -> IPv4Address:
        """Address of box ``index`` (1, 2, …): .11, .12, …"""
        return self.subnet.network_address + 10 + index

    def link_address(self, index: int) -> IPv4Address:
        """Direct-link address of box ``index``; the host itself has none there, as in a real fleet."""
        return self.link_subnet.network_address + 10 + index

    @property
    def exists(self) -> bool:
        return Path(f"/sys/class/net/{self.name}").exists()

    @property
    def ours(self) -> bool:
        alias = Path(f"/sys/class/net/{self.name}/ifalias")
        return alias.exists() and alias.read_text().strip() == self._alias

    @property
    def _alias(self) -> str:
        return f"fleetctl lab {self.owner}"[:255]

    def up(self) -> None:
        """Make the bridge if it is not there; LabError when the name or the addresses are someone else's."""
        if self.exists and not self.ours:
            raise LabError(
                f"an interface {self.name} exists and does not belong to the lab in {self.owner}",
                hint="Take another bridge name and subnet for this lab.",
            )
        self._refuse_taken_subnets()
        if not self.exists:
            # A fixed hardware address: otherwise the bridge takes that of a port, and changes with each boot.
            mac = "02:" + ":".join(hashlib.sha256(self.name.encode()).digest()[:5].hex(":").split(":"))
            run(
                ["ip", "link", "add", self.name, "address", mac, "type", "bridge", "forward_delay", "0"],
                doing=f"making the bridge {self.name}",
            )
            run(["ip", "link", "set", self.name, "alias", self._alias], doing=f"marking {self.name}")
        host = f"{self.host_address}/{self.subnet.prefixlen}"
        run(["ip", "address", "replace", host, "dev", self.name], doing=f"giving {self.name} its address")
        run(["ip", "link", "set", self.name, "up"], doing=f"starting {self.name}")

    def down(self) -> None:
        """Remove the bridge if it is ours."""
        if self.ours:
            run(["ip", "link", "delete", self.name], doing=f"removing the bridge {self.name}")

    def _refuse_taken_subnets(self) -> None:
        out = subprocess.run(["ip", "-json", "-4", "route"], capture_output=True, text=True, check=False).stdout
        for route in json.loads(out or "[]"):
            if route.get("dst", "default") == "default" or route.get("dev") == self.name:
                continue
            there = IPv4Network(route["dst"], strict=False)
            for net in (self.subnet, self.link_subnet):
                if there.overlaps(net):
                    raise LabError(
                        f"the lab's network {net} is in use here already: {route['dst']} on {route.get('dev')}",
                        hint="Take another subnet for this lab.",
                    )


def host_end(leader: int) -> str | None:
    """Name of the host's end of the cable into the box whose PID 1 is ``leader``; None when it is gone."""
    try:
        index = Path(f"/proc/{leader}/root/sys/class/net/host0/iflink").read_text().strip()
    except OSError:
        return None
    for interface in Path("/sys/class/net").iterdir():
        if (interface / "ifindex").read_text().strip() == index:
            return interface.name
    return None


def interface_exists(name: str) -> bool:
    """Whether there is an interface of that name; long names count, which the kernel keeps as alternatives."""
    show = ["ip", "link", "show", "dev", name]
    return subprocess.run(show, capture_output=True, check=False).returncode == 0


def set_carrier(interface: str, state: str) -> None:
    """``state`` is "up" or "down": plug the cable in or pull it."""
    run(["ip", "link", "set", interface, state], doing=f"setting {interface} {state}")
