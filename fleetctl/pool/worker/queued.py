"""What JetStream itself says of the queue, for whoever watches the fleet: one answer for all boxes, as each sees it so.

The JSON object (``GET /state``, under ``queue``)::

    {"time": 1764540000.0, "limit": 1000,                   requests of a model that may be in the queue
     "models": {"minilm": {"waiting": …, "at_work": …,      requests that nobody has taken, and not acknowledged
                           "oldest": …,                     seconds that the oldest of those that wait has waited
                           "stored": …,                     all of them: what the limit is about
                           "redelivered": …,                of those at work, delivered more than once
                           "batch": …, "dead": …}}}         lines of batch jobs that wait; requests that were given up
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from base64 import b64decode
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import nats.errors
from nats.aio.client import Client

from fleetctl.pool import wire

log = logging.getLogger(__name__)

FRESH = 0.9
"""Seconds for which a look is good."""
PATIENCE = 1.0
"""Seconds that JetStream may take; whoever asks gets the look before it then."""
STALE = 5.0
"""Seconds after which nobody gets a look any more: what waits is not known then."""


class Queued:
    """Looks at the queue of some models when it is asked, and not more often than once in :data:`FRESH`."""

    def __init__(self, models: Sequence[str]) -> None:
        self._models = tuple(models)
        self._last: dict[str, Any] | None = None
        self._at = 0.0
        self._heard = 0.0
        self._looking = asyncio.Lock()

    async def told(self, client: Client) -> dict[str, Any] | None:
        """The last look, after a new one where that is old; None: nothing is known. Its ``time`` says when."""
        async with self._looking:
            if time.monotonic() - self._at > FRESH:
                self._at = time.monotonic()
                try:
                    async with asyncio.timeout(PATIENCE):
                        self._last = await self._look(client)
                    self._heard = time.monotonic()
                except (nats.errors.Error, TimeoutError, ValueError, KeyError, TypeError) as error:
                    log.debug("what waits is not known: %s", error or type(error).__name__)
            known = client.is_connected and time.monotonic() - self._heard < STALE
            return self._last if known else None

    async def _look(self, client: Client) -> dict[str, Any]:
        async def ask(subject: str, question: dict[str, Any] | None = None) -> dict[str, Any]:
            body = json.dumps(question).encode() if question else b""
            found: dict[str, Any] = json.loads(
                (await client.request(f"$JS.API.{subject}", body, timeout=PATIENCE)).data
            )
            return found

        work, dead = await asyncio.gather(
            ask(f"STREAM.INFO.{wire.WORK}", {"subjects_filter": "work.*"}),
            ask(f"STREAM.INFO.{wire.DEAD}", {"subjects_filter": "dead.*"}),
        )

        async def model(name: str) -> dict[str, Any]:
            lane, batch = await asyncio.gather(
                ask(f"CONSUMER.INFO.{wire.WORK}.{wire.consumer(name)}"),
                ask(f"CONSUMER.INFO.{wire.BATCH}.{wire.consumer(name, 'batch')}"),
            )
            waiting, oldest = int(lane["num_pending"]), 0.0
            if waiting:
                after = int(lane["delivered"]["stream_seq"]) + 1
                first = await ask(f"STREAM.MSG.GET.{wire.WORK}", {"seq": after, "next_by_subj": wire.subject(name)})
                if "message" in first:  # else it was taken meanwhile
                    oldest = _waited(first["message"])
            return {
                "waiting": waiting,
                "at_work": int(lane["num_ack_pending"]),
                "oldest": oldest,
                "stored": _count(work, wire.subject(name)),
                "redelivered": int(lane["num_redelivered"]),
                "batch": int(batch["num_pending"]),
                "dead": _count(dead, wire.dead_subject(name)),
            }

        told = await asyncio.gather(*(model(name) for name in self._models))
        limit = int(work["config"]["max_msgs_per_subject"])
        return {"time": time.time(), "limit": limit, "models": dict(zip(self._models, told, strict=True))}


def _count(stream: dict[str, Any], subject: str) -> int:
    return int((stream["state"].get("subjects") or {}).get(subject, 0))


def _waited(message: dict[str, Any]) -> float:
    """Seconds since its client sent it, or, of one that cannot be read, since it was stored."""
    try:
        sent = wire.unpack(b64decode(message["data"]))[0].sent / 1000
    except (wire.WireError, ValueError, KeyError):
        sent = 0.0
    if sent <= 0:
        sent = datetime.fromisoformat(message["time"][:26].rstrip("Z") + "+00:00").timestamp()
    return round(max(0.0, time.time() - sent), 1)
