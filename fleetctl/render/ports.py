"""Ports of the engines of a layout, and who would get in whose way."""

from __future__ import annotations

from fleetctl.capacity.beside import fit_beside
from fleetctl.engine.runtimes.known import RUNTIMES
from fleetctl.errors import SpecError
from fleetctl.spec.fleet import Fleet

FIRST_PORT = 8000
EVERY_ADDRESS = ("0.0.0.0", "::", "*")


def engine_ports(fleet: Fleet, layout: str) -> dict[str, int]:
    """model → port of its engines: what the file says, else 8000 and up by the place of the model in the layout.

    A layout that can run beside an earlier one of the file, on some box, gets other ports than that one: none that the
    file gives to something else.
    """
    ports: dict[str, dict[str, int]] = {}
    for name, models in fleet.layouts.items():
        taken = {port for earlier in ports if _beside(fleet, name, earlier) for port in ports[earlier].values()}
        ports[name] = {}
        for index, (model, placement) in enumerate(models.items()):
            port = FIRST_PORT + index
            others = taken | _written(fleet, name) if port in taken else set()
            while port in others:
                port += len(models)
            ports[name][model] = placement.port if placement.port is not None else port
        if name == layout:
            break
    return ports[layout]


def _written(fleet: Fleet, layout: str) -> set[int]:
    """Ports that the file, or its defaults, give to others that may be on a box with engines of a layout."""
    placements = fleet.layouts[layout].values()
    masters = {placement.master_port for placement in placements if placement.split is not None}
    return {
        *(placement.port for placement in placements if placement.port is not None),
        *masters,
        *map(rendezvous_port, masters),
        fleet.proxy.port,
        *([fleet.guard.port] if fleet.guard else []),
        *(port for ports in pool_ports(fleet).values() for port in ports),
    }


def _beside(fleet: Fleet, layout: str, other: str) -> bool:
    return any(fit_beside(fleet, box, layout, other) for box in fleet.boxes if _on(fleet, layout, other, box))


def _on(fleet: Fleet, layout: str, other: str, box: str) -> bool:
    """Both layouts have engines on the box."""
    return all(any(box in placement.boxes for placement in fleet.layouts[name].values()) for name in (layout, other))


def has_socket(fleet: Fleet, layout: str, model: str) -> bool:
    """The engines of a model have no port but a Unix socket: in a pool, where their kind can."""
    return fleet.layouts[layout][model].pool is not None and RUNTIMES[fleet.models[model].runtime].sockets


def listens_on(fleet: Fleet, layout: str, box: str) -> set[int]:
    """Ports that the engines of a layout listen on, on one box."""
    found: set[int] = set()
    for model, placement in fleet.layouts[layout].items():
        if has_socket(fleet, layout, model):
            continue
        if placement.split is None and box in placement.boxes:
            found.add(engine_ports(fleet, layout)[model])
        elif placement.split is not None and box == next(iter(placement.split)):
            master = placement.master_port
            found |= {engine_ports(fleet, layout)[model], master, rendezvous_port(master)}
    return found


def pool_ports(fleet: Fleet) -> dict[str, tuple[int, ...]]:
    """Ports of a pool's programs, by kind; none where the file has no pool."""
    if fleet.pool is None:
        return {}
    nats = fleet.pool.nats
    meeting = (nats.cluster_port,) if len(nats.boxes) > 1 else ()
    return {"nats": (nats.port, *meeting), "gateway": (fleet.pool.port,), "worker": (fleet.pool.worker_port,)}


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
    if fleet.guard is not None:
        for box in {box for placement in fleet.layouts[layout].values() for box in placement.boxes}:
            take(box, fleet.guard.port, fleet.boxes[box].address, "the guard", "port: of guard:")
    if fleet.pool is not None:
        ours, pooled = pool_ports(fleet), fleet.pool_models(layout)
        seats = {box for model in pooled for box in fleet.layouts[layout][model].boxes}
        for kind, title, boxes in (
            ("nats", "NATS", fleet.pool.nats.boxes),
            ("gateway", "the gateway", fleet.gateways if pooled else ()),
            ("worker", "the worker", sorted(seats)),
        ):
            for box in boxes:
                for port in ours[kind]:
                    take(box, port, fleet.boxes[box].address, title, "the ports under pool:")
    for model, placement in fleet.layouts[layout].items():
        if has_socket(fleet, layout, model):
            continue
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
