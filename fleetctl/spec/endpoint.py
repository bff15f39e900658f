"""The base URL of an OpenAI-compatible API, as clients write it, taken apart."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

_PATH = re.compile(r"/(?:[A-Za-z0-9._~%@:+-]+/)*")
_EXAMPLE = "write like https://api.example.com/v1"
_DEFAULT_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True)
class Endpoint:
    """Where a base URL leads. ``path`` begins and ends with a slash; ``host`` is without brackets."""

    tls: bool
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """Host, and the port where it is not the usual one: what a Host header has."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS["https" if self.tls else "http"] else f"{host}:{self.port}"


def parse_endpoint(url: str) -> Endpoint:
    """The parts of a URL such as ``https://api.example.com/v1``. Raises ValueError, with what to write instead."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError(f"it is no URL; {_EXAMPLE}") from None
    if parts.scheme not in _DEFAULT_PORTS or not host:
        raise ValueError(f"it does not begin with https:// (or http://) and a host; {_EXAMPLE}")
    if "@" in parts.netloc:
        raise ValueError("a user or password does not belong in it; the key is named under api_key:")
    if any(mark in url for mark in "?#"):
        raise ValueError(f"it has a query or a fragment; {_EXAMPLE}")
    if not parts.path:
        raise ValueError(
            f"it has no path, and clients of the API have one, mostly /v1: write {url}/v1, or {url}/ where it has none"
        )
    path = parts.path.rstrip("/") + "/"
    if not _PATH.fullmatch(path):
        raise ValueError(f"its path is not one of plain words; {_EXAMPLE}")
    if port == 0:
        raise ValueError("port 0 leads nowhere")
    return Endpoint(parts.scheme == "https", host, port or _DEFAULT_PORTS[parts.scheme], path)
