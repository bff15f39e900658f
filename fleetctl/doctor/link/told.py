"""What a box told of its link. Field meanings are those of ``fleetctl/onbox/examine_link.py``."""

from __future__ import annotations

import re

from fleetctl.facts.types import Seen


class Interface(Seen):
    """A network interface. ``speed`` and ``can`` (the fastest it supports) are Mbit/s; None: not known."""

    mtu: int
    mac: str = ""
    up: bool = True
    carrier: bool = True
    addresses: dict[str, int] = {}
    speed: int | None = None
    duplex: str | None = None
    errors: dict[str, int] = {}
    packets: int = 0
    pci: str = ""
    pci_speed: str = ""
    pci_width: int | None = None
    driver: str = ""
    can: int | None = None


class Route(Seen):
    """The way to an address."""

    dev: str | None = None
    gateway: str | None = None
    source: str | None = None


class Way(Seen):
    """What came of packets to another box: ``yes``, ``silent``, an errno or ``unknown``; None: not tried."""

    route: Route | None = None
    small: str | None = None
    full: str | None = None
    size: int = 0
    ports: dict[int, str] = {}
    any_port: tuple[int, str] | None = None

    @property
    def answers(self) -> bool:
        """Something came back, whatever it was."""
        told = [*self.ports.values(), self.any_port[1] if self.any_port else ""]
        return "yes" in (self.small, self.full) or any(word in ("open", "refused") for word in told)

    @property
    def tried(self) -> bool:
        """There was an address to try from."""
        return self.any_port is not None


class Gid(Seen):
    """An entry of a GID table."""

    index: int
    gid: str
    type: str


class RdmaPort(Seen):
    """A port of an RDMA device, in the kernel's words (``4: ACTIVE``, ``5: LinkUp``)."""

    device: str
    port: int
    state: str = ""
    phys_state: str = ""
    rate: str = ""
    link_layer: str = ""
    netdevs: tuple[str, ...] = ()
    gids: tuple[Gid, ...] = ()
    board: str = ""

    @property
    def active(self) -> bool:
        """It can be used."""
        return self.state.endswith("ACTIVE") and "LinkUp" in self.phys_state

    def __str__(self) -> str:
        return f"{self.device} port {self.port}: {self.state}, {self.phys_state}, {self.rate}"


class LinkTold(Seen):
    """One box's view of the link."""

    address: str | None = None
    peers: dict[str, str | None] = {}
    interfaces: dict[str, Interface] = {}
    interface: str | None = None
    heard: dict[str, tuple[str, ...]] | None = None
    ways: dict[str, Way] = {}
    rdma: tuple[RdmaPort, ...] = ()
    environment: dict[str, dict[str, str]] = {}

    @property
    def own(self) -> Interface | None:
        """The interface that has the link's address."""
        return self.interfaces.get(self.interface or "")

    def macs(self) -> set[str]:
        """Hardware addresses of the box."""
        return {one.mac for one in self.interfaces.values() if one.mac}

    def of_link(self) -> set[str]:
        """Interfaces that end in the cable of the link: a ConnectX-7 of a DGX Spark shows each port as two."""
        mine = self.interface or ""
        return {mine} | {name for name in self.interfaces if mine and _twins(name, mine)}

    def rdma_of_link(self) -> list[RdmaPort]:
        """RDMA ports that belong to the link's interface, those of its twin included."""
        return [port for port in self.rdma if set(port.netdevs) & self.of_link()]


def _twins(name: str, other: str) -> bool:
    """Two interfaces that differ only in the PCI domain: ``enp1s0f0np0`` and ``enP2p1s0f0np0``."""
    found = [re.fullmatch(r"en(?:P\d+)?(p\d+s\d+f\d+np\d+)", text) for text in (name, other)]
    return name != other and found[0] is not None and found[1] is not None and found[0][1] == found[1][1]
