"""Signs of life: for JetStream, that requests are in good hands, and for gateways, that a silent stream goes on."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import nats.errors

from fleetctl.pool import wire
from fleetctl.pool.worker.intake import Intake


async def at_work(intake: Intake) -> None:
    """Tell JetStream of all that is held, again and again."""
    while True:
        await asyncio.sleep(wire.AT_WORK_EVERY)
        intake.answers.tidy(time.monotonic())
        with suppress(nats.errors.Error):
            for request in list(intake.held.values()):
                if not request.settled:
                    await request.delivery.at_work()


async def alive(intake: Intake) -> None:
    """Tell gateways of streams that have been silent for a while, again and again."""
    while True:
        await asyncio.sleep(wire.ALIVE_EVERY / 4)
        now = time.monotonic()
        with suppress(nats.errors.Error):
            for request in list(intake.held.values()):
                if request.begun and now - request.sent_at > wire.ALIVE_EVERY * 0.75:
                    request.sent_at = now
                    await request.outlet.send(wire.Frame(wire.Kind.ALIVE))
