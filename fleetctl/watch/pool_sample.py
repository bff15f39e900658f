"""A pool at one moment. None is "not known" everywhere, and never zero."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class PoolEngineSample:
    """One engine, as its worker has it. ``phase`` is a word of ``fleetctl/pool/residency.py``, or ``unknown``.

    Bytes, requests and tokens per second since the sample before, seconds. ``requests`` and ``tokens`` are counted
    through restarts since the watch began. ``local``: requests that its box has taken of the model and not begun.
    """

    id: str
    model: str
    box: str
    phase: str = "unknown"
    pinned: bool = False
    wish: str | None = None
    memory: int | None = None
    running: int | None = None
    local: int | None = None
    request_rate: float | None = None
    token_rate: float | None = None
    requests: float | None = None
    tokens: float | None = None
    deaths: int | None = None
    idle_seconds: float | None = None
    load_seconds: float | None = None
    reason: str = ""
    """Why its last load failed."""


@dataclass(frozen=True)
class PoolModelSample:
    """One model in the queue, which all boxes share: requests that wait, that are with boxes, and both together, which
    is what the limit is about; seconds that the oldest has waited; lines of batch jobs that wait; requests that were
    given up (kept for a week). ``refused``: 429s of all gateways since the watch began."""

    waiting: int | None = None
    at_work: int | None = None
    stored: int | None = None
    oldest: float | None = None
    redelivered: int | None = None
    batch: int | None = None
    dead: int | None = None
    request_rate: float | None = None
    token_rate: float | None = None
    refused: float | None = None
    refused_rate: float | None = None


@dataclass(frozen=True)
class PoolProgramSample:
    """A program of the pool on a box: ``nats``, ``worker``, ``gateway`` or ``batch``. ``state`` is systemd's word.

    ``connected`` to NATS; of workers also whether the box is drained, and the memory of its engines in bytes.
    """

    kind: str
    box: str
    unit: str
    state: str = "unknown"
    connected: bool | None = None
    drained: bool | None = None
    memory_limit: int | None = None
    memory_taken: int | None = None
    redelivered: float | None = None
    redelivered_rate: float | None = None
    why: str | None = None
    """Why it could not be read."""


@dataclass(frozen=True)
class PoolSample:
    """The pool. What the queue holds is told once for all boxes; ``limit`` is of requests of one model."""

    programs: tuple[PoolProgramSample, ...] = ()
    engines: tuple[PoolEngineSample, ...] = ()
    models: dict[str, PoolModelSample] = field(default_factory=dict)
    limit: int | None = None
    waiting: int | None = None
    oldest: float | None = None
    batch: int | None = None
    dead: int | None = None
    refused_rate: float | None = None
    redelivered_rate: float | None = None
