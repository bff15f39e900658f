"""Where an nginx configuration sends requests: locations with proxy_pass, and the upstreams behind them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from fleetctl.proxy.lint.findings import Place
from fleetctl.proxy.lint.nginx_reader import Config, Directive
from fleetctl.proxy.lint.quantities import count, nginx_seconds

# Paths of an engine whose answers are short: rules about streams and long prompts leave them alone.
_SHORT = re.compile(
    r"(metrics|health|ping|version|models|docs|redoc|openapi|favicon|static|assets|status|tokenize|load|ready|live|"
    r"grafana|prometheus|acme|robots)"
)


@dataclass(frozen=True)
class Peer:
    """A ``server`` line of an upstream."""

    line: Directive
    address: str
    params: dict[str, str]

    @property
    def max_fails(self) -> int:
        found = count(self.params.get("max_fails", ""))
        return 1 if found is None else found

    @property
    def fail_timeout(self) -> float:
        found = nginx_seconds(self.params.get("fail_timeout", ""))
        return 10.0 if found is None else found

    @property
    def host(self) -> str:
        """The name or address without its port; empty for a Unix socket."""
        return host_of(self.address)


@dataclass(frozen=True)
class Upstream:
    """An ``upstream`` block."""

    block: Directive
    name: str
    peers: tuple[Peer, ...]

    @property
    def active(self) -> list[Peer]:
        return [peer for peer in self.peers if "backup" not in peer.params and "down" not in peer.params]

    @property
    def several(self) -> bool:
        """Whether requests can go to more than one server."""
        return len([peer for peer in self.peers if "down" not in peer.params]) > 1

    @property
    def method(self) -> Directive | None:
        """How a server is chosen; None: round robin."""
        names = ("least_conn", "ip_hash", "hash", "random", "least_time", "sticky", "fair")
        found = [directive for directive in self.block.inner if directive.name in names]
        return found[-1] if found else None


@dataclass(frozen=True)
class Route:
    """A place that passes requests on. ``upstream`` is None when proxy_pass names an address itself."""

    at: Directive
    proxy_pass: Directive
    target: str
    upstream: Upstream | None

    @property
    def path(self) -> str:
        level: Directive | None = self.at
        while level is not None and level.name != "location":
            level = level.parent
        return level.args[-1] if level is not None and level.args else "/"

    @property
    def where(self) -> str:
        return f"location {self.path}"

    @property
    def short(self) -> bool:
        """Whether its answers are short ones: metrics, health, lists of models."""
        return bool(_SHORT.search(self.path.lower()))

    def value(self, name: str, default: str) -> str:
        setting = self.at.setting(name)
        return setting.arg(0, default) if setting else default

    def seconds(self, name: str, default: float) -> float:
        found = nginx_seconds(self.value(name, ""))
        return default if found is None else found

    def place(self, name: str) -> Place:
        """Where the setting is made, or else where it is missing."""
        setting = self.at.setting(name)
        return setting.place if setting else self.proxy_pass.place

    def shown(self, name: str, default: str, because: str = "the default") -> str:
        """The setting as it stands, or that nginx's default applies."""
        setting = self.at.setting(name)
        return setting.text if setting else f"{name} {default} ({because})"


def host_of(address: str) -> str:
    """The host of ``host:port``, ``[::1]:80`` or ``unix:/path`` (then empty)."""
    if address.startswith("unix:"):
        return ""
    if address.startswith("["):
        return address[1:].split("]")[0]
    return address.split(":")[0]


def is_name(host: str) -> bool:
    """Whether a host has to be looked up: neither an address, nor a variable, nor this machine."""
    if not host or "$" in host or host == "localhost":
        return False
    return not re.fullmatch(r"[0-9.]+|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*", host)


def upstreams(config: Config) -> dict[str, Upstream]:
    """The upstreams of the http part, by name."""
    found = {}
    for block in config.every("upstream"):
        above = block.parent
        if not block.block or not block.args or (above is not None and above.name == "stream"):
            continue
        peers = []
        for line in block.own("server"):
            params = dict(_param(word) for word in line.args[1:])
            peers.append(Peer(line, line.arg(0), params))
        found[block.args[0].lower()] = Upstream(block, block.args[0], tuple(peers))
    return found


def _param(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    return name, value


def routes(config: Config) -> Iterator[Route]:
    """Every place with an HTTP proxy_pass."""
    known = upstreams(config)
    for directive in config.every("proxy_pass"):
        above = directive.parent
        match = re.match(r"https?://([^/]*)", directive.arg(0))
        if above is None or (match is None and "$" not in directive.arg(0)):
            continue
        target = match[1] if match else directive.arg(0)
        yield Route(above, directive, target, known.get(target.lower()))


def generating(config: Config) -> list[Route]:
    """The routes that long answers may take."""
    return [route for route in routes(config) if not route.short]


def balanced(config: Config) -> list[Upstream]:
    """Upstreams with several servers that some route uses; all of them where the file has no route at all."""
    used = {route.upstream.name for route in routes(config) if route.upstream}
    known = upstreams(config).values()
    return [upstream for upstream in known if upstream.several and (upstream.name in used or not used)]
