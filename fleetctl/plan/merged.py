"""The proxy during a move: the settings of the layout to come, and the servers of both. Pure."""

from __future__ import annotations

from fleetctl.render.proxy import endpoint, template_digest
from fleetctl.render.release import Backend, ProxyConfig, Server


def merged_proxy(source: ProxyConfig | None, target: ProxyConfig) -> ProxyConfig:
    """The proxy during a move: settings of the target, servers of both, those of the source layout enabled.

    Where it listened before, it goes on listening until the move is done.
    """
    if source is None or not set(source.boxes) & set(target.boxes):
        return target.model_copy(update={"layout": None, "template": template_digest()})
    backends = {backend.name: backend for backend in target.backends}
    for old in source.backends:
        after = _successors(old, target)
        backends.update({new.name: _with_servers_of(old, backends[new.name], source.layout) for new in after})
        if not after:
            backends[old.name] = old
    return target.model_copy(
        update={
            "layout": source.layout,
            "former": tuple(sorted(_endpoints(source) - _endpoints(target))),
            "backends": tuple(backends.values()),
            "template": template_digest(),
        }
    )


def _successors(old: Backend, target: ProxyConfig) -> list[Backend]:
    """Backends that take the requests of an earlier one: those that share a name clients use, else the one named alike.

    A backend is named after the first of its models in the file, and a new build may come to stand before the old one.
    """
    sharing = [new for new in target.backends if set(new.served_as) & set(old.served_as)]
    return sharing or [new for new in target.backends if new.name == old.name]


def _with_servers_of(old: Backend, new: Backend, layout: str | None) -> Backend:
    known = {server.name for server in new.servers}
    extra = tuple(server for server in old.servers if server.name not in known)
    moved = {server.name: server for server in old.servers if server.layout == layout}
    return new.model_copy(update={"servers": tuple(_as_it_runs(server, moved) for server in new.servers) + extra})


def names_during(name: str, source: ProxyConfig | None, target: ProxyConfig | None) -> list[str]:
    """What a server (``BACKEND/SERVER``) of the running proxies is called once they have the servers of both layouts.

    Its own name comes first: proxies that go away keep it.
    """
    backend, _, server = name.partition("/")
    old = next((one for one in source.backends if one.name == backend), None) if source else None
    after = _successors(old, target) if old is not None and target is not None else []
    return list(dict.fromkeys([name, *(f"{new.name}/{server}" for new in after)]))


def _endpoints(config: ProxyConfig) -> set[str]:
    return {endpoint(address, config.port) for address in config.listens}


def _as_it_runs(server: Server, running: dict[str, Server]) -> Server:
    """A server whose engine runs elsewhere until the switch keeps the address that it has now."""
    return running.get(server.name, server)
