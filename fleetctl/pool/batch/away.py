"""Going on when NATS goes away and comes back: a restart of its box is nothing that a job has to end for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import nats.errors
from nats.js.errors import APIError, NoStreamResponseError, ServerError, ServiceUnavailableError

Result = TypeVar("Result")

PAUSE = 0.5
"""Seconds between two tries."""

_NO_ROOM = frozenset({10023, 10047, 10077})
"""insufficient resources; insufficient storage resources available; maximum bytes (or messages) exceeded."""

Hear = Callable[[float], Awaitable[None]]
"""Told after each failed try for how many seconds NATS has been away; 0.0 once, when it answers again."""


def is_without_room(error: APIError) -> bool:
    """Whether JetStream has no place for a message: a stream is full, or the disk that all streams may take."""
    return error.err_code in _NO_ROOM


def is_away(error: BaseException) -> bool:
    """Whether an error says that NATS is not there, or not yet ready, and may be in a moment."""
    if isinstance(error, APIError):
        return isinstance(error, ServiceUnavailableError | ServerError) and not is_without_room(error)
    gone = (nats.errors.TimeoutError, nats.errors.NoRespondersError, nats.errors.ConnectionClosedError)
    coming = (nats.errors.ConnectionReconnectingError, nats.errors.StaleConnectionError, NoStreamResponseError)
    return isinstance(error, (*gone, *coming, nats.errors.OutboundBufferLimitError, TimeoutError, OSError))


class Patience:
    """Tries calls again for as long as NATS is away, and tells of it."""

    def __init__(self, hear: Hear | None = None) -> None:
        self._hear = hear
        self._since: float | None = None

    async def call(self, ask: Callable[[], Awaitable[Result]]) -> Result:
        """What ``ask`` returns, tried until NATS answers. Other errors are its own."""
        while True:
            try:
                result = await ask()
            except Exception as error:
                if not is_away(error):
                    raise
                await self.away()
            else:
                await self.back()
                return result

    async def away(self) -> None:
        """Note that a call failed, and wait a moment."""
        now = time.monotonic()
        self._since = self._since if self._since is not None else now
        if self._hear is not None:
            await self._hear(now - self._since)
        await asyncio.sleep(PAUSE)

    async def back(self) -> None:
        """Note that NATS answers."""
        if self._since is not None:
            self._since = None
            if self._hear is not None:
                await self._hear(0.0)
