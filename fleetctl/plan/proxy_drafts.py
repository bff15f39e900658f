"""The steps of a move on its proxies: their configuration, who takes requests, the address. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from fleetctl.plan.difference import PROXY_UNIT, UNIT_FOLDER, description, description_of, is_vrrp
from fleetctl.plan.draft import Draft, Move, known_there, proxies_of, proxy_draft
from fleetctl.render.names import PROXY_STATES
from fleetctl.spec.units import seconds

PROXY_LANE = "proxy:"
PROXY_FOLDER = "/etc/fleetctl/proxy/"


def proxy_paths(paths: Iterable[str], unit: str) -> list[str]:
    """Those that belong to the proxy, which steps of its own install and remove."""
    return [path for path in paths if path.startswith(PROXY_FOLDER) or path == UNIT_FOLDER + unit]


def load_proxy(move: Move) -> Iterable[Draft]:
    """The proxies run a configuration with the servers of both layouts."""
    config = move.difference.load
    for box in move.difference.load_on if config is not None else ():
        assert config is not None
        word = "start" if move.observed[box].proxy is None else "reload"
        yield proxy_draft(
            move,
            box,
            "proxy",
            f"{word} the proxy with the servers of both layouts",
            frozenset({box}),
            {
                "config": config.model_dump(mode="json"),
                "description": description(config),
                "generation": move.generation,
            },
        )


def hold(move: Move) -> Iterable[Draft]:
    """New requests go elsewhere, or wait."""
    for box, names in _closing(move):
        summary = f"{_fate_of_new_requests(move)}: drain {', '.join(names)}"
        yield proxy_draft(move, box, "proxy", summary, frozenset({PROXY_LANE}), {"servers": names})


def _closing(move: Move) -> Iterable[tuple[str, list[str]]]:
    """Each box of the proxy with the servers that close there."""
    there = ((box, known_there(move, box, move.difference.close)) for box in proxies_of(move))
    return ((box, names) for box, names in there if names)


def _fate_of_new_requests(move: Move) -> str:
    if move.turn or move.difference.served:
        return "new requests go to the other copies"
    return "new requests go to the new engines" if move.beside else "hold new requests"


def drain(move: Move, then: str = "maint") -> Iterable[Draft]:
    """Running requests finish; then the servers are out."""
    for box, names in _closing(move):
        summary = f"running requests finish (at most {seconds(move.patience)})"
        params = {"servers": names, "limit": move.patience, "then": then}
        yield proxy_draft(move, box, "proxy", summary, frozenset({PROXY_LANE}), params)


def open_server(move: Move) -> Iterable[Draft]:
    """The engine's server takes requests."""
    if move.target.proxy is None:
        return
    for engine, box in ((engine, box) for engine in move.difference.open for box in proxies_of(move)):
        lanes = frozenset(rank.box for rank in engine.ranks)
        name = f"{engine.backend}/{engine.server}"
        if not known_there(move, box, [name]):
            continue
        yield proxy_draft(
            move,
            box,
            engine.id,
            f"the proxy sends requests to {name}",
            lanes,
            {
                "server": name,
                "address": engine.address,
                "port": engine.port,
                "maxconn": engine.concurrency,
                # Undone while other copies serve: its running requests finish first.
                **({"drain": move.patience} if move.turn or move.beside else {}),
            },
        )


def open_gateway(move: Move) -> Iterable[Draft]:
    """The gateways' servers take requests. They do so once all of the pool is at work: each serves every box of it."""
    boxes = frozenset(move.difference.boxes)
    for backend, server in move.difference.pool.open:
        name = f"{backend}/{server.name}"
        for box in proxies_of(move):
            if not known_there(move, box, [name]):
                continue
            yield proxy_draft(
                move,
                box,
                name,
                f"the proxy sends requests for {backend} to the gateway on {server.box}",
                boxes,
                {"server": name, "address": server.address, "port": server.port, "maxconn": server.maxconn},
            )


def settle_proxy(move: Move) -> Iterable[Draft]:
    """The proxies come back right after a reboot."""
    if not move.difference.settle_proxy:
        return
    proxy = move.target.proxy
    for name, box in move.difference.boxes.items():
        gone = proxy_paths(box.remove, PROXY_UNIT)
        if proxy is not None and name in proxy.boxes:
            paths = proxy_paths((file.path for file in move.target.files.get(name, ())), PROXY_UNIT)
            yield Draft(
                name,
                f"proxy@{name}",
                f"the proxy on {name} comes back with {move.target.layout} after a reboot",
                frozenset({name}),
                {
                    "generation": move.generation,
                    "install": paths,
                    "remove": gone,
                    "description": description_of(move.target),
                },
            )
        elif gone:
            summary = f"stop and remove the proxy on {name}"
            yield Draft(name, f"proxy@{name}", summary, frozenset({name}), {"leave": [*gone, PROXY_STATES]})


def settle_address(move: Move) -> Iterable[Draft]:
    """The floating address is kept by the boxes of the target."""
    if not move.difference.settle_address:
        return
    proxy = move.target.proxy
    for name, box in move.difference.boxes.items():
        gone = [path for path in box.remove if is_vrrp(path)]
        target, lanes = f"address@{name}", frozenset({name})
        if proxy is not None and proxy.floating is not None and name in proxy.boxes:
            paths = [file.path for file in move.target.files.get(name, ()) if is_vrrp(file.path)]
            summary = f"keepalived on {name}: {proxy.floating.address} is on one of {', '.join(proxy.boxes)}"
            yield Draft(name, target, summary, lanes, {"generation": move.generation, "install": paths})
        elif gone:
            yield Draft(name, target, f"{name} gives the floating address up", lanes, {"leave": gone})
