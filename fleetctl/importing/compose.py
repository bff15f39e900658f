"""A docker compose file (compose-spec): the services that run an engine."""

from __future__ import annotations

import re

from fleetctl.importing.command import container_engine
from fleetctl.importing.container import Run, bind, publish
from fleetctl.importing.dialects import seen
from fleetctl.importing.found import Found, FoundModel, Word, is_secret, set_environment
from fleetctl.importing.tree import Node, read_yaml
from fleetctl.importing.words import commands, shell_words

# Keys that say nothing that fleetctl does not do itself.
_OURS = {
    "image", "command", "entrypoint", "environment", "volumes", "ports", "ipc", "network_mode", "networks", "restart",
    "container_name", "hostname", "shm_size", "init", "stdin_open", "tty", "healthcheck", "stop_grace_period",
    "pull_policy", "expose", "labels", "mem_limit", "memswap_limit", "deploy", "runtime", "gpus", "privileged",
    "cap_add", "devices", "user", "security_opt", "ulimits", "stop_signal",
}  # fmt: skip
_LEFT_OUT = {
    "depends_on": "an engine waits for nothing else",
    "build": "the image is built: name one that the boxes have, or can pull",
    "env_file": "the file was not read, for it may have secrets: write its variables in environment:",
    "secrets": "write those that the engine needs in environment:, by reference",
    "configs": "write them as options of the container",
    "profiles": "which services run where is what layouts: says",
    "extends": "the service that it extends was not read",
    "logging": "engines log to the journal",
    "working_dir": "paths are whole ones",
}
_LISTED = {"cap_add": "--cap-add", "devices": "--device", "security_opt": "--security-opt", "group_add": "--group-add"}
_DEFAULT = re.compile(r"\$\{([A-Za-z_]\w*):?-([^}]*)\}")


def looks_like(root: Node) -> bool:
    """It has services."""
    services = root.get("services")
    return services is not None and services.items is not None


def read(file: str, text: str) -> Found:
    """The engines among its services."""
    found = Found("compose")
    services = read_yaml(file, text).get("services")
    for name, service in (services.items or ()) if services is not None else ():
        if service.items is None:
            found.note(service.place, f"the service {name} is no mapping")
            continue
        model = _service(found, name, service)
        if model is None:
            found.note(service.place, f"the service {name} starts no engine that is read here, and was left out")
        else:
            found.add(model)
    return found


def _service(found: Found, name: str, service: Node) -> FoundModel | None:
    model = FoundModel(service.place, "")
    run = Run("docker")
    image = service.get("image")
    words = [*_words(found, service.get("entrypoint")), *_words(found, service.get("command"))]
    dialect = seen([image.text or "" if image is not None else "", *(word.text for word in words)])
    if dialect is None:
        return None
    if image is not None and image.text:
        run.image = Word(_defaulted(found, image.text, image), image.place)
    else:
        found.note(service.place, f"the service {name} has no image: {dialect.image} is assumed")
        run.image = Word(dialect.image, service.place)
    _environment(found, model, service.get("environment"))
    _options(found, run, service)
    for part in _list(service.get("ports")):
        if part.text is not None:
            publish(found, run, _defaulted(found, part.text, part), part.place)
        elif (target := part.said("target")) is not None:
            publish(found, run, f"{part.said('published') or target}:{target}", part.place)
    for part in _list(service.get("volumes")):
        if part.text is not None:
            bind(found, run, _defaulted(found, part.text, part), part.place)
        else:
            bind(found, run, f"{part.said('source') or ''}:{part.said('target') or ''}", part.place)
    for key, value in service.items or ():
        if key not in _OURS and key not in _LISTED and not key.startswith("x-"):
            found.note(value.place, f"{key}: {_LEFT_OUT.get(key, 'fleetctl does not know what becomes of it')}")
    return container_engine(found, model, run, words)


def _list(node: Node | None) -> tuple[Node, ...]:
    return node.parts or () if node is not None else ()


def _words(found: Found, node: Node | None) -> list[Word]:
    """The words of a command, which is a list or one line."""
    if node is None:
        return []
    if node.parts is not None:
        return [Word(_defaulted(found, part.text, part), part.place) for part in node.parts if part.text is not None]
    split = commands(shell_words(node.place.file, (node.text or "").replace("\n", " "), node.lines_from))
    return [Word(_defaulted(found, word.text, node), word.place) for command in split for word in command]


def _defaulted(found: Found, text: str, node: Node) -> str:
    """With the defaults of ``${NAME:-default}``, and ``$`` for ``$$``."""
    for name, default in _DEFAULT.findall(text):
        told = "what it is without" if is_secret(name, default) else f"{default or 'nothing'} is what it is without"
        found.note(node.place, f"${{{name}}} may be set to something else: {told}")
    return _DEFAULT.sub(lambda match: match[2], text).replace("$$", "$")


def _environment(found: Found, model: FoundModel, node: Node | None) -> None:
    if node is None:
        return
    if node.items is not None:
        for key, told in node.items:
            set_environment(found, model, key, told.text or None, told.place)
        return
    for part in node.parts or ():
        name, equals, value = (part.text or "").partition("=")
        set_environment(found, model, name, value if equals else None, part.place)


def _options(found: Found, run: Run, service: Node) -> None:
    """What ``docker run`` has to be told as well."""
    run.options += _gpus(service)
    if (runtime := service.said("runtime")) is not None:
        run.options.append(f"--runtime={runtime}")
    if (service.said("privileged") or "").lower() == "true":
        run.options.append("--privileged")
    if (user := service.said("user")) is not None:
        run.options.append(f"--user={user}")
    for key, option in _LISTED.items():
        run.options += [f"{option}={part.text}" for part in _list(service.get(key)) if part.text]
    deploy = service.get("deploy")
    replicas = deploy.said("replicas") if deploy is not None else None
    if deploy is not None and replicas not in (None, "1"):
        found.note(deploy.place, f"deploy: replicas: {replicas}: copies: has one engine on each box instead")


def _gpus(service: Node) -> list[str]:
    if (gpus := service.said("gpus")) is not None:
        return [f"--gpus={gpus}"]
    node = service.get("deploy")
    for key in ("resources", "reservations", "devices"):
        node = node.get(key) if node is not None else None
    for device in _list(node):
        capabilities = [part.text for part in _list(device.get("capabilities"))]
        if "gpu" not in capabilities or device.said("driver") not in (None, "nvidia", "cdi"):
            continue
        ids = [part.text or "" for part in _list(device.get("device_ids"))]
        if ids:
            return [f'--gpus="device={",".join(ids)}"' if len(ids) > 1 else f"--gpus=device={ids[0]}"]
        return [f"--gpus={device.said('count') or 'all'}"]
    return []
