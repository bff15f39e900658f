"""What a worker keeps of its answers: for a minute, and no longer."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

from nats.aio.client import Client

from fleetctl.pool import wire
from fleetctl.pool.worker.answers import Answers


class Nobody:
    """A connection on which nobody listens."""

    async def publish(self, subject: str, data: bytes) -> None:
        """Nothing comes of it."""


def envelope(number: int) -> wire.Envelope:
    return wire.Envelope(f"r{number}", "m", "/v1/embeddings", "answer.g.r", 0, 0)


def held(answers: Answers) -> int:
    """All that is kept, wherever."""
    return sum(len(cast(Any, found)) for found in vars(answers).values() if hasattr(found, "__len__"))


def test_after_a_minute_nothing_is_left_of_short_answers() -> None:
    async def answered() -> None:
        answers = Answers(cast(Client, Nobody()))
        for number in range(1000):
            await answers.outlet(envelope(number), "w").send(wire.Frame(wire.Kind.WHOLE, b"short"))
        assert held(answers) > 0
        answers.tidy(time.monotonic() + wire.ANSWERS_KEPT + 1)
        assert held(answers) == 0

    asyncio.run(answered())


def test_what_is_forgotten_leaves_nothing() -> None:
    async def begun() -> None:
        answers = Answers(cast(Client, Nobody()))
        for number in range(100):
            outlet = answers.outlet(envelope(number), "w")
            await outlet.send(wire.Frame(wire.Kind.BEGIN, bytes(900_000)))
            answers.forget(wire.token(envelope(number).id))
        await answers.outlet(envelope(100), "w").send(wire.Frame(wire.Kind.WHOLE, b"kept"))
        kept = answers.get(wire.token("r100"))
        assert kept is not None and not kept.lost

    asyncio.run(begun())
