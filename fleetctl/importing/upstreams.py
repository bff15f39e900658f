"""The servers of a proxy as boxes: names, addresses and ports, whichever program the configuration is of."""

from __future__ import annotations

import re

from fleetctl.importing.found import Found, FoundBox, Setting, as_name, unlike
from fleetctl.proxy.lint.findings import Place

_ADDRESS = re.compile(r"[0-9.]+|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*")


def add_server(found: Found, place: Place, address: str, *, name: str = "", concurrency: int | None = None) -> None:
    """Take a server as a box; the same address twice is one box."""
    if "@" in address:
        found.note(place, "an address with a user in front of an @ is none of a box, and was left out")
        return
    host, port = split_address(address)
    if address.startswith(("unix:", "/")) or not host or "$" in host or host in ("localhost", "127.0.0.1", "::1", "*"):
        found.note(place, f"{address} is no address at which other boxes reach an engine, and was left out")
        return
    taken = [box.name for box in found.boxes]
    if any(box.address == host for box in found.boxes):
        found.note(place, f"{host} is there already: a box has one engine of a model")
        return
    wanted = as_name(name, "box") if any(mark.isalnum() for mark in name) else ""
    if not wanted:
        wanted = f"box{len(taken) + 1}" if _ADDRESS.fullmatch(host) else as_name(host.split(".")[0], "box")
    found.boxes.append(FoundBox(place, unlike(wanted, taken), host, port, concurrency))


def split_address(address: str) -> tuple[str, int | None]:
    """Host and port of ``host:port``, ``[::1]:8000`` or a host alone."""
    match = re.fullmatch(r"\[([^\]]+)\](?::([0-9]+))?|([^:]*)(?::([0-9]+))?|(.*:.*)", address)
    assert match is not None
    port = match[2] or match[4]
    return match[1] or match[3] or match[5] or "", int(port) if port and 0 < int(port) < 65536 else None


def suggest(found: Found, key: str, value: str | int, place: Place) -> None:
    """A setting of the proxy as it was, in fleet.yaml's words; of several the last counts."""
    found.proxy[key] = Setting(value, str(place))


def duration(seconds: float) -> str:
    """Seconds as fleet.yaml has them."""
    if seconds >= 120 and seconds % 60 == 0:
        return f"{seconds / 60:.0f}m"
    return f"{1000 * seconds:g}ms" if seconds < 1 else f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
