"""A backend of haproxy.cfg: its servers are boxes, their maxconn is how many requests an engine takes."""

from __future__ import annotations

from fleetctl.importing.found import Found
from fleetctl.importing.upstreams import add_server, duration, suggest
from fleetctl.proxy.lint import haproxy_reader
from fleetctl.proxy.lint.haproxy_reader import Section, Server
from fleetctl.proxy.lint.quantities import count, haproxy_seconds

_TIMES = {"connect": "timeout_connect", "queue": "timeout_queue", "server": "stream_limit"}
_KEEP_ALIVE = "http-keep-alive"


def read(file: str, text: str) -> Found:
    """The servers of every backend that may have engines, and the proxy's settings."""
    found = Found("haproxy")
    config = haproxy_reader.read(file, text)
    backends = list(config.used_backends)
    for section, servers in backends:
        if len(backends) > 1:
            found.note(
                section.place, f"{section.title} is one of {len(backends)}: its servers are boxes of one fleet here"
            )
        for server in servers:
            _server(found, server)
        _settings(found, section)
    for section in config.of("frontend", "listen"):
        for bind in section.all("bind"):
            port = bind.value(1).rpartition(":")[2]
            if count(port) and any(
                line.value(1) == one.name for line in section.all("default_backend") for one, _ in backends
            ):
                suggest(found, "port", int(port), bind.place)
            if "ssl" in bind.words:
                found.note(bind.place, "HTTPS: write proxy: tls: {certificate: PATH}")
    return found


def _server(found: Found, server: Server) -> None:
    place, params = server.place, server.params
    if server.copies > 1:
        found.note(place, f"server-template makes {server.copies} servers of one name: write each as a box")
        return
    if "backup" in params:
        found.note(place, f"{server.name} is a backup: fleetctl has a bridge: for that, and it was left out")
        return
    if params.get("weight", "1") not in ("1", "100", ""):
        found.note(place, f"weight {params['weight']}: concurrency: of a box says how much more one takes than another")
    if "ssl" in params:
        found.note(place, "engines are spoken to in plain HTTP")
    add_server(found, place, server.address, name=server.name, concurrency=count(params.get("maxconn", "")))
    for word, key in (("fall", "fall"), ("rise", "rise")):
        number = count(params.get(word, ""))
        if number is not None and 1 <= number <= 10:
            suggest(found, key, number, place)
    every = haproxy_seconds(params.get("inter", ""))
    if every:
        suggest(found, "check_interval", duration(every), place)


def _settings(found: Found, section: Section) -> None:
    for word, key in _TIMES.items():
        line = section.last("timeout", word)
        time = haproxy_seconds(line.value(2)) if line is not None else None
        if line is not None and time:
            suggest(found, key, duration(time), line.place)
    line = section.last("retries")
    number = count(line.value(1)) if line is not None else None
    if line is not None and number is not None and number <= 10:
        suggest(found, "retries", number, line.place)
    balance = section.last("balance")
    if balance is not None and balance.value(1) != "leastconn":
        found.note(balance.place, f"balance {balance.value(1)}: requests go to the engine with the fewest (leastconn)")
    for prefix in (("acl",), ("http-request",), ("use-server",), ("stick",), ("cookie",), ("reqrep",)):
        for line in section.lines:
            if line.words[: len(prefix)] == prefix:
                found.note(line.place, f"{' '.join(line.words[:2])} … has no place in fleet.yaml")
