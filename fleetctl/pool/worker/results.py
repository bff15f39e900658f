"""Where the answer to a line of a batch job goes: into the stream of results, before the line is acknowledged."""

from __future__ import annotations

import asyncio
import logging

import nats.errors
from nats.js import JetStreamContext
from nats.js.errors import APIError

from fleetctl.pool import wire
from fleetctl.pool.batch.results import is_answered, keep

log = logging.getLogger(__name__)

PAUSE = 1.0
"""Seconds until an answer is offered again that JetStream did not take."""


class ResultOutlet:
    """Keeps one answer, however long it takes: the line has been paid for."""

    def __init__(self, js: JetStreamContext, envelope: wire.Envelope, worker: str) -> None:
        self._js = js
        self._envelope = envelope
        self._worker = worker

    async def send(self, frame: wire.Frame) -> None:
        """The answer. Raises nats' ConnectionClosedError when the connection is over for good."""
        while True:
            try:
                if not await keep(self._js, self._envelope, frame._replace(worker=self._worker)):
                    log.info("%s had its answer already", self._envelope.id)
                return
            except (nats.errors.Error, APIError, TimeoutError) as error:
                if isinstance(error, nats.errors.ConnectionClosedError):
                    raise
                log.warning("the answer to %s is offered again: %s", self._envelope.id, error or type(error).__name__)
            await asyncio.sleep(PAUSE)


async def has_answer(js: JetStreamContext, envelope: wire.Envelope) -> bool:
    """Whether a line that came before has its answer. False also where JetStream does not say."""
    try:
        return await is_answered(js, envelope)
    except (nats.errors.Error, APIError, TimeoutError):
        return False
