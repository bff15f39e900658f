"""Where requests are sent: a URL as clients of the OpenAI API have it, or a Unix socket that leads to an engine."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from fleetctl.errors import SpecError
from fleetctl.spec import endpoint as written


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
        return written.Endpoint(self.tls, self.host, self.port, "/").authority

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
        bare = not urlsplit(url).path.strip("/")
        found = written.parse_endpoint(f"{url.rstrip('/')}/v1" if bare else url)
    except ValueError as error:
        raise SpecError(f"{url.rpartition('@')[2]}: {error}") from error
    return Endpoint(found.host, found.port, found.path.rstrip("/"), found.tls, api_key=api_key)
