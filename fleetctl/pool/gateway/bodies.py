"""Long bodies on their way into JetStream's object store, piece by piece.

The format is that of NATS's object stores (https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-20.md):
chunks on one subject, then a message about them on another. It has a connection of its own, so that no short request
stands behind a chunk.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Protocol

import nats.errors
from nats.js import JetStreamContext
from nats.js.api import Header, PubAck
from nats.js.errors import APIError, NoStreamResponseError

from fleetctl.pool import wire
from fleetctl.pool.gateway.refusals import Refusal, queue_away, store_full

CHUNK = 128 << 10
"""Bytes of a chunk, but for the last; what comes from a socket at once is not cut, so it may be more."""
AHEAD = 4
"""Chunks sent that are not confirmed yet."""
CONFIRM = 10.0
"""Seconds that JetStream may take for one."""
_STREAM = f"OBJ_{wire.BODIES}"


@dataclass(frozen=True)
class Stored:
    """A body in the store."""

    name: str
    size: int
    digest: bytes
    """SHA-256."""
    chunks: str = ""
    """Subject of its chunks, in the object store."""


class Store(Protocol):
    """Where long bodies go."""

    async def store(self, pieces: AsyncIterator[bytes]) -> Stored: ...
    async def remove(self, stored: Stored) -> None: ...


class Bodies:
    """The bucket, as gateways fill it."""

    def __init__(self, js: JetStreamContext) -> None:
        self._js = js

    async def store(self, pieces: AsyncIterator[bytes]) -> Stored:
        """Store a body under a new name. Raises Refusal, having removed what was stored, and what ``pieces`` raises."""
        name = secrets.token_hex(12)
        subject = f"$O.{wire.BODIES}.C.{name}"
        try:
            return await self._store(name, subject, pieces)
        except BaseException as error:
            await asyncio.shield(self._purge(subject))
            if isinstance(error, APIError | NoStreamResponseError | nats.errors.Error | TimeoutError):
                raise _refused(error) from None
            raise

    async def remove(self, stored: Stored) -> None:
        """Forget a body that no request refers to."""
        await self._purge(stored.chunks)
        await self._purge(_about(stored.name))

    async def _store(self, name: str, subject: str, pieces: AsyncIterator[bytes]) -> Stored:
        digest, size, chunks = sha256(), 0, 0
        sent: deque[asyncio.Task[PubAck]] = deque()
        held: list[bytes] = []
        try:
            async for piece in pieces:
                digest.update(piece)
                size += len(piece)
                held.append(piece)
                if sum(map(len, held)) >= CHUNK:
                    sent.append(self._send(subject, held))
                    chunks, held = chunks + 1, []
                if len(sent) > AHEAD:
                    await sent.popleft()
            if held:
                sent.append(self._send(subject, held))
                chunks += 1
            while sent:
                await sent.popleft()
        finally:
            for task in sent:
                task.cancel()
        about = {
            "name": name,
            "options": {"max_chunk_size": CHUNK},
            "bucket": wire.BODIES,
            "nuid": name,
            "size": size,
            "mtime": datetime.now(UTC).isoformat(),
            "chunks": chunks,
            "digest": "SHA-256=" + base64.urlsafe_b64encode(digest.digest()).decode(),
        }
        headers: dict[str, Any] = {Header.ROLLUP.value: "sub"}
        await self._js.publish(_about(name), json.dumps(about).encode(), timeout=CONFIRM, headers=headers)
        return Stored(name, size, digest.digest(), subject)

    def _send(self, subject: str, pieces: list[bytes]) -> asyncio.Task[PubAck]:
        chunk = b"".join(pieces)
        # Not publish_async: its future never hears of an error that JetStream answers with.
        return asyncio.create_task(self._js.publish(subject, chunk, timeout=CONFIRM))

    async def _purge(self, subject: str) -> None:
        with suppress(APIError, NoStreamResponseError, nats.errors.Error, TimeoutError):
            await self._js.purge_stream(_STREAM, subject=subject)


def _about(name: str) -> str:
    return f"$O.{wire.BODIES}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


def _refused(error: BaseException) -> Refusal:
    if isinstance(error, APIError) and "maximum" in (error.description or ""):
        return store_full()
    return queue_away(f"a long body cannot be stored ({error or type(error).__name__})")
