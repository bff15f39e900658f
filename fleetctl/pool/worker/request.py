"""A request that this worker holds: where it came from, where its answer goes, and what has become of it."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgpack

from fleetctl.pool import wire
from fleetctl.pool.worker import convert
from fleetctl.pool.worker.merge import Mergeable


class Delivery(Protocol):
    """What is said to whoever gave the request to this worker."""

    async def ack(self) -> None:
        """It is finished with."""

    async def ack_surely(self) -> None:
        """The same; returns when the other side has noted it."""

    async def back(self) -> None:
        """Somebody else may have it, now."""

    async def at_work(self) -> None:
        """It is in good hands."""


class Outlet(Protocol):
    """Where frames of the answer go."""

    async def send(self, frame: wire.Frame) -> None:
        """One frame; returns once it may be relied on that it arrives."""


@dataclass(eq=False, slots=True)
class Request:
    """One request between its arrival and its end."""

    envelope: wire.Envelope
    body: bytes
    model: str
    """The model at whose desk it waits."""
    lane: wire.Lane
    delivery: Delivery
    outlet: Outlet
    content_type: str = convert.JSON
    """Of ``body``, which an engine can read."""
    cost: int = 1
    """Tokens that it is estimated to take."""
    merge: Mergeable | None = None
    broken: int = 0
    """Engines that died while they worked on it."""
    alone: bool = False
    """Nothing else runs beside it on its engine: it is suspected to be the reason for that."""
    arrived: float = field(default_factory=time.monotonic)
    begun: bool = False
    """Its first chunk went out, so that it is not repeated."""
    sent_at: float = 0.0
    """When something of its answer went out last (monotonic)."""
    settled: bool = False
    """Acknowledged, or given back."""
    gone: bool = False
    """Its client has gone."""
    ready: bool = False
    """All of it is here, and it waits for an engine or is at work."""
    call: asyncio.Task[None] | None = None
    """What can be cut off when its client goes."""

    @property
    def key(self) -> str:
        """What it is known by."""
        return wire.token(self.envelope.id)

    def left(self) -> float | None:
        """Seconds until its deadline, below 0 after it; None: it has none."""
        return self.envelope.deadline / 1000 - time.time() if self.envelope.deadline else None

    async def ack(self) -> None:
        """Acknowledge it, once."""
        if not self.settled:
            self.settled = True
            await self.delivery.ack()

    async def ack_surely(self) -> None:
        """Acknowledge it so that it does not come again, whatever happens to this worker."""
        if not self.settled:
            await self.delivery.ack_surely()
            self.settled = True

    async def fail(self, status: int, message: str) -> None:
        """Tell the client, and have done with it."""
        await self.outlet.send(failed(status, message, self.envelope.accept))
        await self.ack()


def failed(status: int, message: str, accept: str = convert.JSON) -> wire.Frame:
    """An error as OpenAI's API has it, in the format that the client takes."""
    kinds = {400: "invalid_request_error", 504: "timeout_error", 503: "overloaded_error"}
    told: dict[str, Any] = {"message": message, "type": kinds.get(status, "internal_error"), "code": status}
    if convert.is_msgpack(accept):
        return wire.Frame(wire.Kind.FAILED, msgpack.packb({"error": told}), status, convert.MSGPACK)
    return wire.Frame(wire.Kind.FAILED, json.dumps({"error": told}).encode(), status)
