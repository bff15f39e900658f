"""What the proxies of a fleet, one on each of several boxes, say together. Pure."""

from __future__ import annotations

from fleetctl.facts.types import Observed, ProxyFacts, ServerFacts
from fleetctl.render.release import ProxyConfig

AGAIN = "again"  # the server of a backend that leads back into the proxy itself; that of an engine has a dash


def running_proxies(config: ProxyConfig | None, observed: Observed) -> dict[str, ProxyFacts]:
    """Box → what its proxy says, for those of the proxy's boxes on which it runs."""
    found = {box: observed[box].proxy for box in config.boxes if box in observed} if config else {}
    return {box: proxy for box, proxy in found.items() if proxy is not None}


def servers_up(config: ProxyConfig | None, observed: Observed) -> set[str]:
    """Servers that take requests wherever the proxy runs."""
    each = [_up(proxy) for proxy in running_proxies(config, observed).values()]
    return set.intersection(*each) if each else set()


def servers_up_somewhere(config: ProxyConfig | None, observed: Observed) -> set[str]:
    """Servers that take requests from at least one proxy."""
    return set[str]().union(*(_up(proxy) for proxy in running_proxies(config, observed).values()))


def servers_not_closed(config: ProxyConfig | None, observed: Observed) -> set[str]:
    """Engines that some proxy sends requests to, or will once they are well: those that are down count.

    One whose checks somebody has switched off counts too. The server AGAIN of each backend is no engine.
    """
    servers = [pair for proxy in running_proxies(config, observed).values() for pair in proxy.servers.items()]
    return {name for name, server in servers if not server.closed and name.rpartition("/")[2] != AGAIN}


def seen_of(name: str, config: ProxyConfig | None, observed: Observed) -> dict[str, ServerFacts]:
    """Box → what its proxy says of one server (``BACKEND/SERVER``), for the proxies that know it."""
    running = running_proxies(config, observed)
    return {box: proxy.servers[name] for box, proxy in running.items() if name in proxy.servers}


def may_come_up(name: str, config: ProxyConfig | None, observed: Observed) -> bool:
    """A server (``BACKEND/SERVER``) takes requests of some proxy, or will as soon as its engine is well."""
    return any(not server.closed for server in seen_of(name, config, observed).values())


def holders(config: ProxyConfig | None, observed: Observed) -> list[str]:
    """Boxes that have the floating address at this moment."""
    floating = config.floating if config else None
    return [box for box, facts in observed.items() if floating and floating.address in facts.addresses]


def _up(proxy: ProxyFacts) -> set[str]:
    return {name for name, server in proxy.servers.items() if server.up}
