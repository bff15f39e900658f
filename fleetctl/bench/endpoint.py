"""Where requests are sent: a URL as clients of the OpenAI API have it, or a Unix socket that leads to an engine."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from fleetctl.errors import SpecError


@dataclass(frozen=True)
class Endpoint:
    """One address. ``path`` stands before ``/chat/completions``; with ``socket`` host and port only name it."""

    host: str
    port: int
    path: str = "/v1"
    tls: bool = False
    socket: Path | None = None
    api_key: str | None = None

    def __repr__(self) -> str:
        return f"Endpoint({self.url})"  # without its key

    @property
    def authority(self) -> str:
        """Host and port, as in a Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http{'s' if self.tls else ''}://{self.authority}{self.path}"

    @property
    def context(self) -> ssl.SSLContext | None:
        """How to speak TLS with it; None for plain HTTP."""
        return ssl.create_default_context() if self.tls else None


def parse_endpoint(url: str, api_key: str | None = None) -> Endpoint:
    """The endpoint of a base URL; without a path ``/v1`` is meant. Raises SpecError for what is none."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise SpecError(f"{url} is no URL: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SpecError(f"{url} is no URL of an endpoint", hint="write like http://10.0.0.11:8000/v1")
    if parts.username or parts.password:
        raise SpecError("a URL with a password in it shows in the list of processes", hint="use --api-key-env NAME")
    if parts.query or parts.fragment:
        raise SpecError(f"{url}: an endpoint has no ? and no #")
    tls = parts.scheme == "https"
    path = parts.path.rstrip("/") or "/v1"
    return Endpoint(parts.hostname, port or (443 if tls else 80), path, tls, api_key=api_key)
