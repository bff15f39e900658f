"""What a box tells of its proxy. Field meanings are those of ``fleetctl/onbox/examine_proxy.py``; times are seconds."""

from __future__ import annotations

from fleetctl.facts.types import Seen


class RunningServer(Seen):
    """A server of the running HAProxy. ``changed``: so long ago its status changed. ``name``: DNS's, ``-`` for none."""

    backend: str
    server: str
    status: str
    check: str = ""
    weight: int = 0
    changed: float = 0.0
    total: int = 0
    maxconn: int = 0
    address: str = ""
    port: int = 0
    name: str = "-"

    @property
    def id(self) -> str:
        """BACKEND/SERVER."""
        return f"{self.backend}/{self.server}"

    @property
    def up(self) -> bool:
        """It takes new requests."""
        return self.status.startswith("UP") and self.weight > 0

    @property
    def failed(self) -> bool:
        """It does not pass its check."""
        return self.status.startswith("DOWN")


class Running(Seen):
    """The running HAProxy."""

    uptime: float
    servers: tuple[RunningServer, ...] = ()


class Scrape(Seen):
    """Reads of metrics by one client, ``answered`` with 200; by server that answered."""

    count: int
    answered: int = 0
    first: float
    last: float
    servers: dict[str, int] = {}


class Traffic(Seen):
    """What the log tells. ``sent`` counts requests by backend and server since ``since`` (backend → time)."""

    lines: int = 0
    oldest: float | None = None
    sent: dict[str, dict[str, int]] = {}
    since: dict[str, float] = {}
    metrics: dict[str, Scrape] = {}
    now: float = 0.0
    complete: bool = True
    why: str | None = None


class State(Seen):
    """A server in the file that HAProxy reads when it starts; ``admin`` are HAProxy's bits."""

    backend: str
    server: str
    address: str = ""
    port: int = 0
    admin: int = 0


class Network(Seen):
    """An address of the box and the length of its network's prefix."""

    interface: str
    address: str
    prefix: int


class OtherProxy(Seen):
    """A proxy that is not fleetctl's; ``text`` None: its configuration cannot be read."""

    program: str
    unit: str
    running: bool
    enabled: bool
    path: str = ""
    text: str | None = None


class ProxyTold(Seen):
    """All of it. ``running`` None: HAProxy does not run here; ``config``: a file that was edited."""

    running: Running | None = None
    traffic: Traffic | None = None
    states: tuple[State, ...] = ()
    networks: tuple[Network, ...] = ()
    others: tuple[OtherProxy, ...] = ()
    config: str | None = None
