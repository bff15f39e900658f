"""Ports of the engines of a layout, and who would get in whose way."""

from __future__ import annotations

from fleetctl.errors import SpecError
from fleetctl.spec.fleet import Fleet

FIRST_PORT = 8000
EVERY_ADDRESS = ("0.0.0.0", "::", "*")


def engine_ports(fleet: Fleet, layout: str) -> dict[str, int]:
    """model → port of its engines: what the file says, else 8000 and up by the place of the model in the layout."""
    return {
        model: placement.port if placement.port is not None else FIRST_PORT + index
        for index, (model, placement) in enumerate(fleet.layouts[layout].items())
    }


def rendezvous_port(master_port: int) -> int:
    """Port at which the ranks of a split meet (rank.py): the one after the engine's own master port."""
    return master_port + 1


def check_ports(fleet: Fleet, layout: str) -> None:
    """Refuse two listeners of a layout on one port of a box, the proxy included. Raises SpecError naming both."""
    ports = engine_ports(fleet, layout)
    taken: dict[tuple[str, int], list[tuple[str, str]]] = {}

    def take(box: str, port: int, address: str, who: str, key: str) -> None:
        if port > 65535:
            raise SpecError(f"{who} would get port {port} on {box}, which does not exist", hint=f"lower {key}")
        for other_address, other in taken.get((box, port), []):
            if address == other_address or {address, other_address} & {*EVERY_ADDRESS}:
                raise SpecError(f"port {port} on {box} is wanted by {other} and by {who}", hint=f"change {key}")
        taken.setdefault((box, port), []).append((address, who))

    proxy = fleet.proxy
    for box in proxy.on:
        own = fleet.boxes[box].address
        for address in dict.fromkeys([fleet.proxy_address, own] if proxy.floating else [proxy.address or own]):
            take(box, proxy.port, address, "the proxy", "port: of proxy:")
    for model, placement in fleet.layouts[layout].items():
        where = f"model {model} in layout {layout}"
        head = next(iter(placement.boxes))
        for box in [head] if placement.split is not None else placement.boxes:
            take(box, ports[model], fleet.boxes[box].address, where, f"port: of {where}")
        if placement.split is not None:
            # The engine binds its master port on every address, the ranks meet on the link only.
            key, master = f"master_port: of {where}", placement.master_port
            take(head, master, "0.0.0.0", f"the master port of {where}", key)
            link = fleet.boxes[head].link or fleet.boxes[head].address
            take(head, rendezvous_port(master), link, f"the meeting of the ranks of {where}", key)
