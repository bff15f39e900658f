"""What a box is like before it is set up, as values. Field meanings are those of ``fleetctl/onbox/setup_look.py``."""

from __future__ import annotations

from typing import Any

from fleetctl.facts.types import Seen


class Offer(Seen):
    """What installing a package would bring; ``unknown``: the lists of the box do not have it yet."""

    new: tuple[str, ...]
    size: str
    unknown: bool


class VenvFacts(Seen):
    """Where an environment is or shall be; ``free`` are bytes on the disk, ``program``: the engine's is in it."""

    there: bool
    program: bool = False
    version: str | None
    free: int


class InterfaceState(Seen):
    """Addresses with their prefix, MTU and the largest that the device takes."""

    addresses: tuple[str, ...]
    mtu: int
    most: int
    up: bool


class LinkFacts(Seen):
    """The interface of the link; ``kind`` is what manages it, ``uses`` that one's file or connection for it."""

    interface: str
    state: InterfaceState | None
    kind: str | None
    uses: str | None
    interfaces: tuple[str, ...]


class AddressFacts(Seen):
    """An IPv4 address of the box; ``default``: the default route leaves by its interface."""

    interface: str
    address: str
    prefix: int
    default: bool


class SetupFacts(Seen):
    """One box."""

    user: str
    keys_trouble: str | None
    system: str
    manager: str | None
    packages: dict[str, str | None]
    offers: dict[str, Offer]
    earlyoom: str | None = None
    sudo: str | None
    rules: str | None
    includes: bool
    venvs: dict[str, VenvFacts]
    venv_module: bool
    images: dict[str, bool]
    programs: dict[str, bool]
    addresses: tuple[AddressFacts, ...]
    link: LinkFacts | None
    record: dict[str, dict[str, Any]]
