"""Which kind of file it is, and reading it."""

from __future__ import annotations

import re

from fleetctl.errors import SpecError
from fleetctl.importing import compose, haproxy, nginx, spark_vllm_docker, sparkrun, systemd_unit
from fleetctl.importing.command import read_command
from fleetctl.importing.dialects import starts
from fleetctl.importing.found import Found
from fleetctl.importing.kind import Kind
from fleetctl.importing.tree import LONGEST, read_yaml
from fleetctl.proxy.lint import kinds as proxies

_COMMAND = re.compile(rf"{starts()}|\b(?:docker|podman)\s+(?:container\s+)?run\b")
_YAML = re.compile(r"^(?:services|model|container|recipe_version|defaults|command)\s*:", re.MULTILINE)


READERS = {
    Kind.SPARKRUN: sparkrun.read,
    Kind.SPARK_VLLM_DOCKER: spark_vllm_docker.read,
    Kind.COMPOSE: compose.read,
    Kind.SYSTEMD: systemd_unit.read,
    Kind.COMMAND: read_command,
    Kind.NGINX: nginx.read,
    Kind.HAPROXY: haproxy.read,
}


def detect(file: str, text: str) -> Kind:
    """The kind of a text. Raises SpecError, naming the kinds, for what is none of them."""
    if systemd_unit.looks_like(text):
        return Kind.SYSTEMD
    if _YAML.search(text):
        root = read_yaml(file, text)
        if compose.looks_like(root):
            return Kind.COMPOSE
        if sparkrun.looks_like(root):
            return Kind.SPARKRUN
        if spark_vllm_docker.looks_like(root):
            return Kind.SPARK_VLLM_DOCKER
        if root.get("model") is not None:
            return Kind.SPARKRUN
    try:
        return Kind(proxies.detect(file, text).value)
    except SpecError:
        pass
    if _COMMAND.search(text):
        return Kind.COMMAND
    raise SpecError(
        f"{file} is no file that can be imported",
        hint=f"kinds are {', '.join(Kind)}; --kind KIND says which one it is",
    )


def read(file: str, text: str, kind: Kind | None = None) -> Found:
    """What a file says. Raises SpecError when there is nothing in it for fleet.yaml, with all that was noted."""
    if len(text) > LONGEST:
        raise SpecError(f"{file} has more than {LONGEST:,} characters, which nothing that can be imported has")
    if not text.strip():
        raise SpecError(f"{file} is empty")
    found = READERS[kind or detect(file, text)](file, text)
    if found.empty:
        said = "\n".join(str(note) for note in sorted(found.notes))
        raise SpecError(f"{file} ({found.kind}) has nothing for fleet.yaml", hint=said or None)
    return found
