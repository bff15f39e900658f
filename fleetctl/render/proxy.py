"""The proxy of the fleet: what it has to do, as a value, and the files that make HAProxy do it."""

from __future__ import annotations

import hashlib
import ipaddress
import json
from functools import cache
from pathlib import PurePosixPath

from fleetctl.render.backends import backend_of, backends
from fleetctl.render.bridge import bridge, key_file
from fleetctl.render.names import LORA_NAMES, PROXY_FOLDER, PROXY_STATES, PROXY_UNIT, UNIT_FOLDER, VRRP_UNIT
from fleetctl.render.ports import EVERY_ADDRESS
from fleetctl.render.proxy_errors import ERRORS, error_body, error_page
from fleetctl.render.release import Backend, Bridge, File, Floating, ProxyConfig
from fleetctl.render.template import fill
from fleetctl.resources import root_text
from fleetctl.spec.fleet import Fleet

CONFIG = f"{PROXY_FOLDER}/haproxy.cfg"
SCRIPTS = ("relay.lua", "rename.lua", "bridge.lua", "hold.lua", "aloud.lua", "prove.lua", "hung.lua", "prefix.lua",
           "adapters.lua")  # fmt: skip
# Bytes of a request that are kept until its answer begins, and searched for the model's name where there are several.
BODY_LIMIT = 1024 * 1024
# Bytes of a request below which it does not matter which copy has its beginning in the cache: some 500 tokens.
PREFIX_FROM = 2048
MAXCONN = 4000
# Seconds that the bridge may say nothing: a long answer that is not streamed takes less, a hung one is left.
BRIDGE_SILENCE = 300.0
VRRP_RUN = "/run/fleetctl-vrrp"
AGENT_INTERVAL = "500ms"

METRICS = (
    "The counters of one copy are not those of the fleet: read /metrics of every copy at its own address, and add them "
    "up, or let `fleetctl exporter` do it."
)
NOT_FOR_CLIENTS = "Adapters are brought to every copy at once, and not through the proxy: `fleetctl lora push`."


def proxy_config(fleet: Fleet, layout: str | None) -> ProxyConfig:
    """What the proxy has to do in a layout; None: no server is enabled. Raises SpecError for ambiguous names."""
    proxy = fleet.proxy
    return ProxyConfig(
        boxes=proxy.on,
        unit=PROXY_UNIT,
        address=fleet.proxy_address,
        port=proxy.port,
        own={box: fleet.boxes[box].address for box in proxy.on} if proxy.floating else {},
        floating=Floating(**proxy.floating.model_dump()) if proxy.floating else None,
        vrrp_unit=VRRP_UNIT,
        layout=layout,
        hold=proxy.hold,
        keepalive=proxy.keepalive,
        drain=proxy.drain,
        stream_limit=proxy.stream_limit,
        silence_limit=proxy.silence_limit,
        check_interval=proxy.check_interval,
        balance=proxy.balance,
        fall=proxy.fall,
        rise=proxy.rise,
        retries=proxy.retries,
        timeout_connect=proxy.timeout_connect,
        timeout_queue=proxy.timeout_queue,
        timeout_http_keep_alive=proxy.timeout_http_keep_alive,
        backends=backends(fleet),
        adapters=_adapters(fleet),
        api_keys=dict(proxy.api_keys),
        certificate=proxy.tls.certificate if proxy.tls else None,
        bridge=bridge(fleet),
        guard_port=fleet.guard.port if fleet.guard else None,
        template=template_digest(),
    )


def _adapters(fleet: Fleet) -> dict[str, str]:
    """Models of some layout that take adapters, and the backend of each."""
    placed = {model for models in fleet.layouts.values() for model in models}
    return {name: backend_of(fleet, name) for name, model in fleet.models.items() if name in placed and model.loras}


@cache
def template_digest() -> str:
    """Changes when a newer fleetctl would render the same configuration differently."""
    texts = [root_text("haproxy", name) for name in ("haproxy.cfg.j2", *SCRIPTS)]
    texts += [root_text("systemd", "proxy.service.j2"), *(error_page(error) for error in ERRORS)]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def proxy_files(config: ProxyConfig, box: str | None = None) -> tuple[File, ...]:
    """Unit, configuration, Lua scripts, error pages and (where there are keys) the root-only files of keys.

    ``box`` is one of those that run the proxy, by default the lead.
    """
    box = box or config.lead
    run_folder = PurePosixPath(config.admin_socket).parent
    unit = fill(
        "systemd",
        "proxy.service.j2",
        config=CONFIG,
        run_folder=run_folder,
        run_name=run_folder.relative_to("/run"),
        box=box,
        vrrp_unit=config.vrrp_unit if config.floating else None,
        vrrp_run=VRRP_RUN,
    )
    files = [
        File(path=f"{UNIT_FOLDER}/{config.unit}", content=unit),
        File(path=CONFIG, content=haproxy_config(config, box)),
        *(File(path=f"{PROXY_FOLDER}/{name}", content=root_text("haproxy", name)) for name in SCRIPTS),
    ]
    files += [File(path=f"{PROXY_FOLDER}/{e.status}.http", content=error_page(e)) for e in ERRORS]
    if config.api_keys:
        keys = "".join(f"@secret:{name}@ {name}\n" for name in config.api_keys)
        files.append(
            File(path=f"{PROXY_FOLDER}/keys", content=keys, mode=0o600, quoting="word", secrets=dict(config.api_keys))
        )
    key = key_file(config.bridge) if config.bridge else None
    return (*files, key) if key else tuple(files)


def haproxy_config(config: ProxyConfig, box: str | None = None) -> str:
    """Text of haproxy.cfg on one of the proxy's boxes, by default the lead."""
    box = box or config.lead
    several = len(config.backends) > 1
    names = [name for backend in config.backends for name in backend.served_as]
    adapters = _adapter_words(config) if several else ""
    unknown = f"The model is not given or does not exist. There is: {', '.join(names)}"
    usable = ",".join(f'"{backend.name}":%[lua.usable({backend.name})]' for backend in config.backends)
    addresses = [server.address for backend in config.backends for server in backend.servers]
    return fill(
        "haproxy",
        "haproxy.cfg.j2",
        fingerprint=config.fingerprint(),
        box=box,
        admin_socket=config.admin_socket,
        run_folder=PurePosixPath(config.admin_socket).parent,
        states=PROXY_STATES,
        maxconn=MAXCONN,
        binds=_binds(config, box),
        certificate=None if config.certificate is None else _quoted(config.certificate),
        hold_seconds=f"{config.hold:g}",
        keepalive_seconds=f"{config.keepalive:g}",
        stream_seconds=f"{config.stream_limit:g}",
        silence_seconds=f"{config.silence_limit:g}",
        stream_limit=_milliseconds(config.stream_limit),
        retries=config.retries,
        timeout_connect=_milliseconds(config.timeout_connect),
        timeout_queue=_milliseconds(config.hold if config.timeout_queue is None else config.timeout_queue),
        timeout_http_keep_alive=_milliseconds(config.timeout_http_keep_alive),
        check={
            "inter": _milliseconds(config.check_interval),
            "fastinter": _milliseconds(config.check_interval / 2),
            "rise": config.rise,
            "fall": config.fall,
        },
        errors=ERRORS,
        names=not all(map(_is_ip, addresses)),
        several=several,
        lists_models=several or not all(backend.lists_models for backend in config.backends),
        prefix=PREFIX_FROM if config.balance == "prefix" else None,
        body_limit=BODY_LIMIT,
        api_keys=sorted(config.api_keys),
        health=_quoted('{"usable":{' + usable + "}" + _room(config) + _bridge_health(config.bridge) + "}"),
        metrics=_quoted(METRICS),
        models=_quoted(_models(names, with_adapters=bool(adapters))),
        adapters=adapters,
        adapters_file=LORA_NAMES,
        not_for_clients=_quoted(NOT_FOR_CLIENTS),
        unknown_model=_quoted(error_body(unknown, "invalid_request_error", "model_not_found", param="model")),
        backends=[_backend(config, backend) for backend in config.backends],
        bridge=_bridge(config, config.bridge) if config.bridge else None,
        pool=_has_pool(config),
    )


def _models(names: list[str], *, with_adapters: bool) -> str:
    """The answer to /v1/models; with adapters it is a log-format, and they come last."""
    models = {"object": "list", "data": [{"id": n, "object": "model", "owned_by": "fleetctl"} for n in names]}
    text = json.dumps(models)
    return text.replace("%", "%%").removesuffix("]}") + "%[lua.adapter_models]]}" if with_adapters else text


def _adapter_words(config: ProxyConfig) -> str:
    """``MODEL=BACKEND=NAME,…`` for adapters.lua."""
    served = {backend.name: backend.served_as[0] for backend in config.backends}
    return ",".join(f"{model}={backend}={served[backend]}" for model, backend in config.adapters.items())


def _binds(config: ProxyConfig, box: str) -> list[str]:
    """What to listen on. An address that is not the box's own, or not yet or no longer, is listened on all the same."""
    own = config.own.get(box)
    main = endpoint(config.address, config.port)
    binds = [f"{main} transparent" if config.floating else main]
    if own is not None:
        binds.append(endpoint(own, config.port))
    taken = {bind.split()[0] for bind in binds}
    for former in config.former:
        if former not in taken:
            everywhere = former.rpartition(":")[0].strip("[]") in EVERY_ADDRESS
            binds.append(former if everywhere else f"{former} transparent")
    return binds


def _backend(config: ProxyConfig, backend: Backend) -> dict[str, object]:
    return {
        "name": backend.name,
        "title": f"Served as {json.dumps(list(backend.served_as))[1:-1]}",
        "question": _quoted(backend.question or _question(backend.served_as[0])),
        "path": _quoted(backend.path) if backend.path else "",
        "prompt": _quoted(
            backend.question or json.dumps({"model": backend.served_as[0], "prompt": "Hello", "max_tokens": 1})
        ),
        "patterns": " ".join(_quoted(name) for name in backend.served_as),
        "names": not all(_is_ip(server.address) for server in backend.servers),
        "pool": any(server.gateway for server in backend.servers),
        "servers": [
            {
                "name": server.name,
                "address": endpoint(server.address, server.port),
                "maxconn": server.maxconn,
                "agent": "" if server.gateway else _agent(config, backend.name, server.name),
                "disabled": server.layout != config.layout,
            }
            for server in backend.servers
        ],
    }


def _bridge(config: ProxyConfig, bridge: Bridge) -> dict[str, object]:
    address = endpoint(bridge.host, bridge.port)
    host = address.removesuffix(f":{bridge.port}")
    ca = "@system-ca" if bridge.ca is None else _quoted(bridge.ca)
    tls = f" ssl verify required ca-file {ca} sni str({host}) check-sni {host} verifyhost {host}"
    return {
        "host": bridge.name,
        "address": address,
        "named": not _is_ip(bridge.host),
        "path": bridge.path,
        "seconds": f"{bridge.after:g}",
        "limit": bridge.concurrency,
        "models": [(backend, _quoted(json.dumps(name))) for backend, name in bridge.models.items()],
        "key": bridge.api_key is not None,
        "silence": _milliseconds(min(BRIDGE_SILENCE, config.stream_limit)),
        "tls": tls if bridge.tls else "",
    }


def _has_pool(config: ProxyConfig) -> bool:
    return any(server.gateway for backend in config.backends for server in backend.servers)


def _room(config: ProxyConfig) -> str:
    """What /fleetctl/health says besides where batch jobs wait for it, as a log-format: who waits, and who is free."""
    if not _has_pool(config):
        return ""
    queued = ",".join(f'"{backend.name}":%[queue({backend.name})]' for backend in config.backends)
    free = ",".join(f'"{backend.name}":%[be_conn_free({backend.name})]' for backend in config.backends)
    return f',"queued":{{{queued}}},"free":{{{free}}}'


def _bridge_health(bridge: Bridge | None) -> str:
    """What /fleetctl/health says of the bridge, as a log-format."""
    if bridge is None:
        return ""
    return ',"bridge":{"usable":%[nbsrv(fleetctl_bridge)],"running":%[be_conn(fleetctl_bridge)]}'


def _agent(config: ProxyConfig, backend: str, server: str) -> str:
    """The words with which HAProxy asks the guard about a server; without a guard no words."""
    if config.guard_port is None:
        return ""
    return (
        f' agent-check agent-port {config.guard_port} agent-inter {AGENT_INTERVAL} agent-send "{backend}/{server}\\n"'
    )


def _question(model: str) -> str:
    """The smallest completion that an engine can be asked for."""
    return json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1})


def _quoted(text: str) -> str:
    """One word of haproxy.cfg in strong quotes, in which nothing is expanded."""
    return "'" + text.replace("'", "'\\''") + "'"


def _is_ip(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def endpoint(address: str, port: int) -> str:
    """An address and a port as HAProxy wants them."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _milliseconds(seconds: float) -> str:
    """A time for HAProxy, for which 0 would mean "no limit"."""
    return f"{max(1, round(seconds * 1000))}ms"
