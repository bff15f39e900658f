"""Pulls, with a real nats-server: what is outstanding here is what the server still owes."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from nats.aio.msg import Msg
from natsserver import NatsServer, needs_nats
from poolworker import Asker, asking, until

from fleetctl.pool import nats, wire
from fleetctl.pool.worker import pull
from fleetctl.pool.worker.acked import Acked
from fleetctl.pool.worker.pull import Pull, fields

pytestmark = needs_nats


@pytest.fixture(autouse=True)
def lasting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull, "STANDS", 30.0)


async def publish(asker: Asker, count: int) -> None:
    """Requests that nobody can read."""
    for _ in range(count):
        await asker.js.publish(wire.subject("m"), b"x")


def settled(one: Pull, came: list[Msg], count: int, outstanding: int) -> bool:
    """So many have come, and no more than so many are to come."""
    return len(came) == count and one.outstanding() <= outstanding


def test_what_was_asked_for_is_outstanding_until_it_has_come(server: NatsServer) -> None:
    async def counted() -> None:
        async with asking(server.access) as asker:
            await nats.make_consumer(asker.js, "m")
            came: list[Msg] = []
            one = Pull(asker.client, "m", "work", came.append, lambda: None)
            await one.begin()
            waiting, total = 5, 5
            await publish(asker, waiting)
            for _ in range(20):
                # The server shares what waits between the two, and neither's requests may be taken for the other's.
                await one.ahead(100)
                await one.stand(2)
                await until(partial(settled, one, came, total, 2))
                owed = one.outstanding()
                await publish(asker, owed + 1)
                total += owed + 1
                await until(partial(settled, one, came, total - 1, 0))

    asyncio.run(counted())


def test_there_are_no_more_pulls_than_slots(server: NatsServer) -> None:
    async def few() -> None:
        async with asking(server.access) as asker:
            await nats.make_consumer(asker.js, "m")
            one = Pull(asker.client, "m", "work", lambda message: None, lambda: None)
            await one.begin()
            for _ in range(20):
                await one.stand(1)
            assert one.outstanding() == pull.SLOTS - 1
            one.lost()
            assert one.outstanding() == 0

    asyncio.run(few())


def test_a_consumer_that_is_gone_is_noticed(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone() -> None:
        async with asking(server.access) as asker:
            await nats.make_consumer(asker.js, "m")
            one = Pull(asker.client, "m", "work", lambda message: None, lambda: None)
            await one.begin()
            await one.stand(1)
            await asker.client.flush()
            await asker.js.delete_consumer(wire.WORK, wire.consumer("m"))
            await until(lambda: one.missing)
            assert one.outstanding() == 0
            one.missing = False
            monkeypatch.setattr(pull, "STANDS", 0.1)
            await one.stand(1)
            await until(lambda: not one.outstanding())
            assert one.missing

    asyncio.run(gone())


def test_what_was_acknowledged_and_is_there_again_is_removed_and_nothing_else(server: NatsServer) -> None:
    async def removed() -> None:
        async with asking(server.access) as asker:
            acked = Acked()
            for number in range(1, 4):
                await asker.js.publish(wire.subject("m"), b"x", headers={"Nats-Msg-Id": f"r{number}"})
            acked.note("work", 1, "r1")
            acked.note("work", 2, "another, whose number the server has given anew")
            acked.note("work", 9, "one that is gone")
            acked.note("batch", 1, "a line")
            assert await acked.remove(asker.js, lambda: True) == 1
            state = (await asker.js.stream_info(wire.WORK)).state
            assert (state.messages, state.first_seq) == (2, 2)

    asyncio.run(removed())


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        ("$JS.ACK.WORK.work-m.3.17.21.1796075792466188071.5", (3, 17, 5)),
        ("$JS.ACK.hub.ab12.WORK.work-m.3.17.21.1796075792466188071.5.x1", (3, 17, 5)),
        ("_INBOX.something", (1, 0, 0)),
    ],
)
def test_what_a_reply_subject_says(reply: str, found: tuple[int, int, int]) -> None:
    assert fields(reply) == found
