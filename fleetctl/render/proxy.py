"""The proxy of the fleet: what it has to do, as a value, and the files that make HAProxy do it."""

from __future__ import annotations

import hashlib
import ipaddress
import json
from functools import cache
from pathlib import PurePosixPath

from fleetctl.render.backends import backends
from fleetctl.render.names import PROXY_FOLDER, PROXY_UNIT, UNIT_FOLDER
from fleetctl.render.proxy_errors import ERRORS, error_body, error_page
from fleetctl.render.release import Backend, File, ProxyConfig
from fleetctl.render.template import fill
from fleetctl.resources import root_text
from fleetctl.spec.fleet import Fleet

CONFIG = f"{PROXY_FOLDER}/haproxy.cfg"
SCRIPTS = ("hold.lua", "aloud.lua", "prove.lua")
# Bytes of a request that are kept until its answer begins, and searched for the model's name where there are several.
BODY_LIMIT = 1024 * 1024
MAXCONN = 4000
AGENT_INTERVAL = "500ms"


def proxy_config(fleet: Fleet, layout: str | None) -> ProxyConfig:
    """What the proxy has to do in a layout; None: no server is enabled. Raises SpecError for ambiguous names."""
    proxy = fleet.proxy
    return ProxyConfig(
        box=proxy.box,
        unit=PROXY_UNIT,
        address=proxy.address or fleet.boxes[proxy.box].address,
        port=proxy.port,
        layout=layout,
        hold=proxy.hold,
        keepalive=proxy.keepalive,
        drain=proxy.drain,
        stream_limit=proxy.stream_limit,
        check_interval=proxy.check_interval,
        backends=backends(fleet),
        api_keys=dict(proxy.api_keys),
        certificate=proxy.tls.certificate if proxy.tls else None,
        guard_port=fleet.guard.port if fleet.guard else None,
        template=template_digest(),
    )


@cache
def template_digest() -> str:
    """Changes when a newer fleetctl would render the same configuration differently."""
    texts = [root_text("haproxy", name) for name in ("haproxy.cfg.j2", *SCRIPTS)]
    texts += [root_text("systemd", "proxy.service.j2"), *(error_page(error) for error in ERRORS)]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def proxy_files(config: ProxyConfig) -> tuple[File, ...]:
    """Unit, configuration, Lua scripts, error pages and (where there are keys) the root-only file of keys."""
    run_folder = PurePosixPath(config.admin_socket).parent
    unit = fill(
        "systemd",
        "proxy.service.j2",
        config=CONFIG,
        run_folder=run_folder,
        run_name=run_folder.relative_to("/run"),
        box=config.box,
    )
    files = [
        File(path=f"{UNIT_FOLDER}/{config.unit}", content=unit),
        File(path=CONFIG, content=haproxy_config(config)),
        *(File(path=f"{PROXY_FOLDER}/{name}", content=root_text("haproxy", name)) for name in SCRIPTS),
    ]
    files += [File(path=f"{PROXY_FOLDER}/{e.status}.http", content=error_page(e)) for e in ERRORS]
    if config.api_keys:
        keys = "".join(f"@secret:{name}@ {name}\n" for name in config.api_keys)
        files.append(
            File(path=f"{PROXY_FOLDER}/keys", content=keys, mode=0o600, quoting="word", secrets=dict(config.api_keys))
        )
    return tuple(files)


def haproxy_config(config: ProxyConfig) -> str:
    """Text of haproxy.cfg."""
    several = len(config.backends) > 1
    names = [name for backend in config.backends for name in backend.served_as]
    models = {"object": "list", "data": [{"id": n, "object": "model", "owned_by": "fleetctl"} for n in names]}
    unknown = f"The model is not given or does not exist. There is: {', '.join(names)}"
    usable = ",".join(f'"{backend.name}":%[lua.usable({backend.name})]' for backend in config.backends)
    addresses = [server.address for backend in config.backends for server in backend.servers]
    return fill(
        "haproxy",
        "haproxy.cfg.j2",
        fingerprint=config.fingerprint(),
        box=config.box,
        admin_socket=config.admin_socket,
        run_folder=PurePosixPath(config.admin_socket).parent,
        maxconn=MAXCONN,
        bind=_endpoint(config.address, config.port),
        certificate=None if config.certificate is None else _quoted(config.certificate),
        hold=_milliseconds(config.hold),
        hold_seconds=f"{config.hold:g}",
        keepalive_seconds=f"{config.keepalive:g}",
        stream_seconds=f"{config.stream_limit:g}",
        stream_limit=_milliseconds(config.stream_limit),
        check={
            "inter": _milliseconds(config.check_interval),
            "fastinter": _milliseconds(config.check_interval / 2),
        },
        errors=ERRORS,
        names=not all(map(_is_ip, addresses)),
        several=several,
        body_limit=BODY_LIMIT,
        api_keys=sorted(config.api_keys),
        health=_quoted('{"usable":{' + usable + "}}"),
        models=_quoted(json.dumps(models)),
        unknown_model=_quoted(error_body(unknown, "invalid_request_error", "model_not_found", param="model")),
        backends=[_backend(config, backend) for backend in config.backends],
    )


def _backend(config: ProxyConfig, backend: Backend) -> dict[str, object]:
    return {
        "name": backend.name,
        "title": f"Served as {json.dumps(list(backend.served_as))[1:-1]}",
        "question": _quoted(_question(backend.served_as[0])),
        "patterns": " ".join(_quoted(name) for name in backend.served_as),
        "names": not all(_is_ip(server.address) for server in backend.servers),
        "servers": [
            {
                "name": server.name,
                "address": _endpoint(server.address, server.port),
                "maxconn": server.maxconn,
                "agent": _agent(config, backend.name, server.name),
                "disabled": server.layout != config.layout,
            }
            for server in backend.servers
        ],
    }


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


def _endpoint(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _milliseconds(seconds: float) -> str:
    """A time for HAProxy, for which 0 would mean "no limit"."""
    return f"{max(1, round(seconds * 1000))}ms"
