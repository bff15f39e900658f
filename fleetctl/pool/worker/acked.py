"""Requests that were acknowledged and are in the queue again, because the server was killed.

A server that ends by SIGKILL or a power cut may remember a consumer's acknowledgements of the last seconds and not the
removal of their messages (seen with nats-server 2.9.10: 337 of 2,105 requests, five kills). It does not deliver them
again; they stay in the stream, count towards the limit of their model, and go only with their age. So a worker that is
connected anew removes what it has acknowledged shortly before.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import nats.errors
from nats.js import JetStreamContext
from nats.js.api import Header
from nats.js.errors import APIError, NotFoundError

from fleetctl.pool import wire

log = logging.getLogger(__name__)

REMEMBERED = 150.0
"""Seconds: nats-server writes to disk every two minutes at least."""
MOST = 50_000


class _Entry(NamedTuple):
    at: float
    lane: wire.Lane
    sequence: int
    id: str


class Acked:
    """What this worker has acknowledged of late."""

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque(maxlen=MOST)

    def note(self, lane: wire.Lane, sequence: int, identity: str) -> None:
        """A request was acknowledged."""
        now = time.monotonic()
        self._entries.append(_Entry(now, lane, sequence, identity))
        while self._entries[0].at < now - REMEMBERED:
            self._entries.popleft()

    async def remove(self, js: JetStreamContext, connected: Callable[[], bool]) -> int:
        """Remove what is still there, or again; how many that were. Stops when the connection goes."""
        removed = 0
        for lane, stream in (("work", wire.WORK), ("batch", wire.BATCH)):
            entries = [entry for entry in self._entries if entry.lane == lane]
            try:
                state = (await js.stream_info(stream)).state
                for entry in entries if state.messages else ():
                    if state.first_seq <= entry.sequence <= state.last_seq and connected():
                        removed += await _remove(js, stream, entry)
            except (nats.errors.Error, APIError) as error:
                log.info("%s: what is left of a server that was killed: %s", stream, error or type(error).__name__)
        if removed:
            log.warning("%d requests that had been acknowledged were in the queue again, and were removed", removed)
        return removed


async def _remove(js: JetStreamContext, stream: str, entry: _Entry) -> bool:
    """Remove one. Its number may belong to another by now, where the server has lost the last ones."""
    try:
        message = await js.get_msg(stream, entry.sequence)
        if (message.headers or {}).get(Header.MSG_ID.value) != entry.id:
            return False
        return bool(await js.delete_msg(stream, entry.sequence))
    except NotFoundError:
        return False
