"""An upstream block of nginx.conf: its servers are boxes, max_conns is how many requests an engine takes."""

from __future__ import annotations

from fleetctl.importing.found import Found
from fleetctl.importing.upstreams import add_server, duration, suggest
from fleetctl.proxy.lint import nginx_reader
from fleetctl.proxy.lint.nginx_routes import Route, Upstream, routes, upstreams
from fleetctl.proxy.lint.quantities import count, nginx_seconds

_TIMES = {"proxy_connect_timeout": "timeout_connect", "proxy_read_timeout": "stream_limit"}


def read(file: str, text: str) -> Found:
    """The servers of every upstream that requests go to, and the proxy's settings."""
    found = Found("nginx")
    config = nginx_reader.read(file, text)
    for missing in config.not_read:
        found.note(
            missing.place,
            f"include {missing.pattern} was not read: `nginx -T` prints all files as one, to be read here",
        )
    known, taken = upstreams(config), list(routes(config))
    used = {route.upstream.name for route in taken if route.upstream is not None}
    blocks = [block for block in known.values() if block.name in used or not used]
    for block in blocks:
        if len(blocks) > 1:
            place = block.block.place
            found.note(place, f"upstream {block.name} is one of {len(blocks)}: its servers are boxes of one fleet here")
        _upstream(found, block)
    if not known:
        for route in taken:
            add_server(found, route.proxy_pass.place, route.target)
    for route in taken:
        if not route.short:
            _route(found, route)
    return found


def _upstream(found: Found, block: Upstream) -> None:
    for peer in block.peers:
        place = peer.line.place
        if "backup" in peer.params or "down" in peer.params:
            what = "a backup: fleetctl has a bridge: for that" if "backup" in peer.params else "down"
            found.note(place, f"{peer.address} is {what}, and was left out")
            continue
        if peer.params.get("weight", "1") != "1":
            weight = peer.params["weight"]
            found.note(place, f"weight={weight}: concurrency: of a box says how much more one takes than another")
        limit = count(peer.params.get("max_conns", ""))
        add_server(found, place, peer.address, concurrency=limit or None)
    method = block.method
    if method is not None and method.name != "least_conn":
        found.note(method.place, f"{method.name}: requests go to the engine with the fewest (leastconn)")


def _route(found: Found, route: Route) -> None:
    server = route.at
    while server.parent is not None and server.name != "server":
        server = server.parent
    for listen in server.own("listen"):
        port = listen.arg(0).rpartition(":")[2]
        if count(port):
            suggest(found, "port", int(port), listen.place)
        if "ssl" in listen.args:
            found.note(listen.place, "HTTPS: write proxy: tls: {certificate: PATH}")
    for name, key in _TIMES.items():
        setting = route.at.setting(name)
        time = nginx_seconds(setting.arg(0)) if setting is not None else None
        if setting is not None and time:
            suggest(found, key, duration(time), setting.place)
    for name in ("auth_basic", "auth_request", "limit_req"):
        setting = route.at.setting(name)
        if setting is not None:
            what = (
                "proxy: api_keys: has keys for clients" if name.startswith("auth") else "it has no place in fleet.yaml"
            )
            found.note(setting.place, f"{name} is left out: {what}")
