"""Which program a configuration is for, and its findings."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path

from fleetctl.errors import SpecError
from fleetctl.proxy.lint import haproxy_reader, nginx_reader, rules_haproxy, rules_nginx
from fleetctl.proxy.lint.findings import Assumed, Finding, apply

MOST_BYTES = 4 * 1024**2
_NGINX_SIGNS = frozenset(
    ["http", "server", "stream", "upstream", "location", "events", "proxy_pass", "worker_processes", "include"]
)
_HAPROXY_SIGNS = frozenset(["global", "defaults", "frontend", "backend", "listen"])


class Kind(StrEnum):
    """A program whose configuration can be read."""

    HAPROXY = "haproxy"
    NGINX = "nginx"


def load(path: Path) -> tuple[str, str, Path | None]:
    """Name, text and folder of a file; ``-`` is standard input, which has no folder.

    Raises SpecError for a file that cannot be read or is not text.
    """
    name = "standard input" if str(path) == "-" else str(path)
    try:
        if str(path) == "-":
            raw = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with path.open("rb") as file:
                raw = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise SpecError(f"cannot read {name}: {reason}") from error
    if len(raw) > MOST_BYTES:
        raise SpecError(f"{name} is larger than {MOST_BYTES // 1024**2} MiB: not a proxy's configuration")
    if b"\0" in raw:
        raise SpecError(f"{name} is not text")
    text = raw.decode("utf-8", errors="replace").removeprefix("\ufeff").replace("\r\n", "\n")
    return name, text, None if str(path) == "-" else path.parent


def detect(name: str, text: str) -> Kind:
    """The program that reads such a text. Raises SpecError when it is neither."""
    lines = [line.split("#", 1)[0].strip() for line in text.split("\n")]
    first = [line.split(None, 1)[0] for line in lines if line]
    haproxy = sum(word in _HAPROXY_SIGNS for word in first)
    braces = sum(line.endswith(("{", ";", "}")) for line in lines if line)
    nginx = sum(word.rstrip("{;") in _NGINX_SIGNS for word in first)
    if nginx and braces * 2 > len(first):
        return Kind.NGINX
    if haproxy:
        return Kind.HAPROXY
    hint = "HAProxy has sections such as `backend NAME`, nginx has blocks such as `upstream NAME {`; --kind forces one"
    raise SpecError(f"{name} is neither an HAProxy nor an nginx configuration", hint=hint)


def lint(
    name: str, text: str, *, kind: Kind | None = None, folder: Path | None = None, assumed: Assumed | None = None
) -> tuple[Kind, list[Finding]]:
    """What the settings in ``text`` do in an outage or to a long stream, in the order of the file.

    Raises SpecError when it is neither kind of configuration, or its braces do not match.
    """
    kind = kind or detect(name, text)
    assumed = assumed or Assumed()
    if kind is Kind.NGINX:
        directives = nginx_reader.read(name, text, folder)
        if not directives.root.inner and not directives.not_read:
            raise SpecError(f"{name} has no directive of an nginx configuration")
        return kind, apply(rules_nginx.RULES, directives, assumed)
    config = haproxy_reader.read(name, text)
    if not config.sections:
        raise SpecError(f"{name} has no section of an HAProxy configuration")
    return kind, apply(rules_haproxy.RULES, config, assumed)
