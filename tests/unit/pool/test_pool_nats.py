"""The connection to a real nats-server, and what a pool makes in it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from nats.js.errors import APIError
from natsserver import NatsServer, free_port, needs_nats, running

from fleetctl.pool import nats, wire

pytestmark = needs_nats


def test_streams_consumers_and_the_bucket_are_made_once_and_changed_where_they_differ(server: NatsServer) -> None:
    async def made() -> None:
        client = await nats.connect(server.access, "test", wait=10)
        js = client.jetstream()
        for _ in range(2):
            await nats.make_streams(js, limit=2)
            await nats.make_consumer(js, "a b", "work")
            await nats.make_consumer(js, "a b", "batch")
            bucket = await nats.make_bucket(js, store=10 << 20)
        await nats.make_streams(js)  # a worker does not know the limit, and leaves it
        assert (await js.stream_info(wire.WORK)).config.max_msgs_per_subject == 2
        await nats.make_streams(js, limit=3)
        assert (await js.stream_info(wire.WORK)).config.max_msgs_per_subject == 3
        await nats.make_bucket(js)
        assert (await bucket.status()).stream_info.config.max_bytes == 10 << 20
        await client.close()

    asyncio.run(made())


def test_a_model_whose_queue_is_full_takes_no_more_and_others_do(server: NatsServer) -> None:
    async def filled() -> None:
        client = await nats.connect(server.access, "test", wait=10)
        js = client.jetstream()
        await nats.make_streams(js, limit=2)
        for number in range(2):
            await js.publish(wire.subject("a"), b"x", headers={"Nats-Msg-Id": str(number)})
        assert (await js.publish(wire.subject("a"), b"x", headers={"Nats-Msg-Id": "1"})).duplicate
        with pytest.raises(APIError) as refused:
            await js.publish(wire.subject("a"), b"x", headers={"Nats-Msg-Id": "2"})
        assert nats.is_full(refused.value)
        await js.publish(wire.subject("b"), b"x")
        await client.close()

    asyncio.run(filled())


def test_a_result_is_stored_once_whatever_its_message_id(server: NatsServer) -> None:
    async def stored() -> None:
        client = await nats.connect(server.access, "test", wait=10)
        js = client.jetstream()
        await nats.make_streams(js)
        await js.publish(wire.result_subject("j", 1), b"first")
        with pytest.raises(APIError) as refused:
            await js.publish(wire.result_subject("j", 1), b"second")
        assert nats.is_full(refused.value)
        await client.close()

    asyncio.run(stored())


def test_long_bodies_come_back_out_of_the_bucket(server: NatsServer) -> None:
    async def kept() -> None:
        client = await nats.connect(server.access, "test", wait=10)
        bucket = await nats.make_bucket(client.jetstream())
        body = bytes(range(256)) * 12_000
        await bucket.put("r1", body)
        assert (await bucket.get("r1")).data == body
        await bucket.delete("r1")
        await client.close()

    asyncio.run(kept())


def test_a_server_that_is_not_there_is_said_with_its_address() -> None:
    access = wire.NatsAccess((f"nats://127.0.0.1:{free_port()}",), user="worker")
    with pytest.raises(nats.QueueError, match=r"cannot be reached within 0\.5 s: NATS at nats://"):
        asyncio.run(nats.connect(access, "test", wait=0.5))


def test_a_wrong_password_is_said_without_the_password(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("wrong-secret\n")
    more = "authorization { users: [{user: worker, password: right}] }"
    with running(tmp_path, more) as server:
        access = wire.NatsAccess((server.url,), "worker", str(file))
        with pytest.raises(nats.QueueError, match=f"refuses user 'worker': look at {file}") as refused:
            asyncio.run(nats.connect(access, "test", wait=1))
        assert "wrong-secret" not in str(refused.value)
        file.write_text("right\n")
        asyncio.run(_connect(access))


def test_a_refusal_is_told_though_the_server_cuts_off_later_tries_without_a_word(tmp_path: Path) -> None:
    async def refused() -> str:
        tries = 0

        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal tries
            tries += 1
            writer.write(b'INFO {"server_id": "a", "auth_required": true, "max_payload": 1000}\r\n')
            await reader.readline()
            if tries == 1:
                writer.write(b"-ERR 'Authorization Violation'\r\n")
            writer.close()

        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        access = wire.NatsAccess((f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}",), "worker")
        with pytest.raises(nats.QueueError) as told:
            await nats.connect(access, "test", wait=1.5, secret="word")
        server.close()
        assert tries > 1
        return str(told.value)

    assert "refuses user 'worker'" in asyncio.run(refused())


async def _connect(access: wire.NatsAccess) -> None:
    client = await nats.connect(access, "test", wait=10)
    reply = await client.jetstream().account_info()  # the answer comes to an inbox of this user's own
    assert reply.limits
    await client.close()


@pytest.mark.parametrize(("text", "said"), [(None, "cannot be read: No such file"), ("\n", "is empty")])
def test_a_password_file_that_is_of_no_use_is_named(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "password"
    if text is not None:
        file.write_text(text)
    with pytest.raises(nats.QueueError, match=said):
        nats.password(str(file))
