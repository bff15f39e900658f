"""What a box shall have, and the parts and remarks that come of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fleetctl.render.link import Link

FAMILIES = {
    "key": "your public key among those that the login user accepts",
    "packages": "haproxy and keepalived where the proxy runs, and what else the file asks for",
    "sudo": "sudo without a password for fleetctl's program, and for nothing else",
    "link": "address and MTU of the direct link, proved before it stays",
    "earlyoom": "earlyoom, where no guard does its work",
    "engine": "the engine's environment or image",
    "guard": "the guard, which moves bring",
}


@dataclass(frozen=True)
class Wish:
    """What a box shall have. ``venvs``: path → package and program of the engine; ``images``: program, reference."""

    key: str | None = None
    proxy: bool = False
    floating: bool = False
    firewall: bool = False
    nats: bool = False
    guard: bool = False
    venvs: dict[str, tuple[str, str]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    images: tuple[tuple[str, str], ...] = ()
    link: Link | None = None
    program: str = ""
    program_sha256: str = ""

    def packages(self) -> list[str]:
        """Names, as Debian has them, of what may be installed."""
        names = [*(["haproxy"] if self.proxy else []), *(["keepalived"] if self.floating else [])]
        names += ["nftables"] if self.firewall else []
        names += ["nats-server"] if self.nats else []
        return [*names, *(["python3-venv"] if self.venvs else []), "earlyoom"]


@dataclass(frozen=True)
class Draft:
    """A part of a box, and what it means in plain lines: the first says what, the others show it."""

    box: str
    family: str
    part: dict[str, Any]
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Remark:
    """What is not done on a box, and why, or what a person has to do."""

    box: str
    family: str
    text: str
