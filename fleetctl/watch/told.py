"""What a box told, as values. Field meanings are those of ``fleetctl/onbox/watch.py``."""

from __future__ import annotations

from typing import Any

from fleetctl.facts.types import Seen
from fleetctl.render.release import Release


class PageTold(Seen):
    """The lines of one engine, or why there are none."""

    lines: str = ""
    run: str | None = None
    at: float = 0.0
    why: str | None = None


class ProgramTold(Seen):
    """What a program of a pool says of itself: a worker its state as JSON, a gateway lines of its /metrics."""

    state: Any = None
    lines: str = ""
    run: str | None = None
    at: float = 0.0
    why: str | None = None


class UnitTold(Seen):
    """A unit of an engine, in systemd's words."""

    active: str
    sub: str = ""
    restarts: int = 0
    result: str = ""


class ServerTold(Seen):
    """A server of the proxy, in HAProxy's words."""

    status: str
    weight: int = 0

    @property
    def word(self) -> str:
        """One word for it. The proxy's own checks give a weight of 0 to one that leaves completions unanswered."""
        word = self.status.split()[0] if self.status.split() else "unknown"
        return "HUNG" if word == "UP" and self.weight == 0 else word


class ProxyTold(Seen):
    """The proxy of a box."""

    servers: dict[str, ServerTold] = {}
    waiting: int = 0
    held: int = 0
    running: int = 0
    rate: int | None = None


class MemoryTold(Seen):
    """Memory of a box in bytes."""

    total: int
    available: int
    swap_used: int = 0
    pressure: float | None = None


class Told(Seen):
    """All that one round trip tells."""

    boot: str
    time: float
    generation: int | None = None
    changed: float | None = None
    release: Release | None = None
    engines: dict[str, PageTold] = {}
    pool: dict[str, ProgramTold] = {}
    units: dict[str, UnitTold] = {}
    proxy: ProxyTold | None = None
    drained: bool | None = None
    memory: MemoryTold
