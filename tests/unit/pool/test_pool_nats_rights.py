"""NATS as it is rendered: each role may do what it has to do, and nothing that is another's."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import poolworker
import pytest
from certified import needs_openssl, self_signed
from gateways import gateway
from nats.aio.client import Client
from nats.js.errors import APIError, NotFoundError
from natsrendered import files_of
from natsserver import PROGRAM, NatsServer, needs_nats

from fleetctl.pool import nats, wire
from fleetctl.pool.batch.results import is_answered
from fleetctl.pool.worker.acked import Acked
from fleetctl.pool.worker.queued import Queued

pytestmark = needs_nats


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    """The server of one box, at another address and with its store elsewhere."""
    made = NatsServer(tmp_path)
    text = files_of("queue", tmp_path)["nats.conf"]
    text = text.replace("10.0.0.1:4222", f"127.0.0.1:{made.port}").replace(
        "/var/lib/fleetctl-nats", str(tmp_path / "s")
    )
    made.config.write_text(text)
    made.start()
    yield made
    made.stop()


def access(server: NatsServer, role: str) -> wire.NatsAccess:
    return wire.NatsAccess((server.url,), role, str(server.folder / role))


async def connected(server: NatsServer, role: str) -> Client:
    return await nats.connect(access(server, role), role, wait=10)


def test_each_role_does_its_part_of_a_request(server: NatsServer) -> None:
    async def story() -> None:
        gateway, worker, operator = [await connected(server, role) for role in ("gateway", "worker", "operator")]
        for role, limit in ((gateway, 5), (worker, None)):
            await nats.make_streams(role.jetstream(), limit=limit)
            await nats.make_bucket(role.jetstream(), store=None if limit is None else 1 << 20)
        for lane in ("work", "batch"):
            await nats.make_consumer(worker.jetstream(), "minilm", lane)  # type: ignore[arg-type]
        heard = await gateway.subscribe(wire.answers_of("a"))
        body = await nats.make_bucket(gateway.jetstream())
        await body.put("long", b"x" * 300_000)
        await gateway.jetstream().publish(wire.subject("minilm"), b"asked", headers={"Nats-Msg-Id": "1"})
        await operator.jetstream().publish(wire.batch_subject("minilm", "job", 1), b"line")
        store = await nats.make_bucket(worker.jetstream())
        assert len((await store.get("long")).data or b"") == 300_000
        await store.delete("long")
        for lane, stream in (("work", wire.WORK), ("batch", wire.BATCH)):
            consumer = wire.consumer("minilm", lane)  # type: ignore[arg-type]
            pull = await worker.jetstream().pull_subscribe_bind(consumer, stream=stream)
            message = (await pull.fetch(1, timeout=5))[0]
            await message.in_progress()
            await message.ack_sync()
        await worker.publish(wire.answer_subject("a", "1"), b"answer")
        assert (await heard.next_msg(5)).data == b"answer"
        await worker.jetstream().publish(wire.result_subject("job", 1), b"result")
        await worker.jetstream().publish(wire.dead_subject("minilm"), b"dead")

        async def tell(message: Any) -> None:
            await message.respond(b"{}")

        await worker.subscribe(wire.STATE, cb=tell)
        await worker.flush()
        assert (await operator.request(wire.STATE, timeout=5)).data == b"{}"
        assert (await gateway.request(wire.STATE, timeout=5)).data == b"{}"
        found = await operator.jetstream().get_last_msg(wire.RESULTS, wire.result_subject("job", 1))
        assert found.data == b"result"
        for client in (gateway, worker, operator):
            assert client.last_error is None
            await client.close()

    asyncio.run(story())


def test_a_worker_may_tell_what_waits(server: NatsServer) -> None:
    async def story() -> None:
        worker, gateway = await connected(server, "worker"), await connected(server, "gateway")
        await nats.make_streams(worker.jetstream())
        for lane in ("work", "batch"):
            await nats.make_consumer(worker.jetstream(), "minilm", lane)  # type: ignore[arg-type]
        envelope = wire.Envelope("1", "minilm", "/v1/embeddings", "", 0, 0)
        await gateway.jetstream().publish(wire.subject("minilm"), envelope.pack())
        told = await Queued(["minilm"]).told(worker)
        assert told is not None and told["models"]["minilm"]["waiting"] == told["models"]["minilm"]["stored"] == 1
        assert worker.last_error is None
        for client in (worker, gateway):
            await client.close()

    asyncio.run(story())


def test_a_worker_may_remove_what_it_has_acknowledged_and_look_for_answers_to_lines(server: NatsServer) -> None:
    async def looked() -> None:
        worker, operator = await connected(server, "worker"), await connected(server, "operator")
        js = worker.jetstream()
        await nats.make_streams(js)
        await operator.jetstream().publish(
            wire.batch_subject("minilm", "job", 1), b"x", headers={"Nats-Msg-Id": "job.1"}
        )
        acked = Acked()
        acked.note("batch", 1, "job.1")
        assert await acked.remove(js, lambda: True) == 1
        line = wire.Envelope("job.1", "minilm", "/v1/embeddings", wire.result_subject("job", 1), 0, 0)
        assert not await is_answered(js, line)
        await js.publish(line.answer, b"result")
        assert await is_answered(js, line)
        for stream in (wire.WORK, wire.BATCH):
            with pytest.raises(NotFoundError):
                await js.get_msg(stream, 99)
            with pytest.raises(APIError):
                await js.delete_msg(stream, 99)
        assert worker.last_error is None
        await worker.close()
        await operator.close()

    asyncio.run(looked())


def test_gateway_and_worker_answer_short_long_and_duplicate_requests_within_their_rights(server: NatsServer) -> None:
    engine = poolworker.engine(server.folder, "minilm", pinned=True)
    settings = poolworker.config(access(server, "worker"), engine)
    (server.folder / "worker.json").write_text(json.dumps(wire.as_json(settings)))
    units = poolworker.ProcessUnits()
    units.spawn(engine.unit)
    said = server.folder / "worker.log"
    with said.open("wb") as log:
        argv = [sys.executable, str(poolworker.HERE / "worker_process.py"), str(server.folder / "worker.json")]
        worker = subprocess.Popen(argv, env=poolworker.environment(), stderr=log)
    try:
        with gateway(server.folder, access(server, "gateway")) as door:
            for text in ("short", "long " * 300_000):
                answer = door.post("/v1/embeddings", {"model": "all-minilm", "input": text})
                assert answer.status == 200, answer.body
            again = {"x-request-id": "1"}
            answers = [door.post("/v1/embeddings", {"model": "all-minilm", "input": "a"}, again) for _ in range(2)]
            assert [one.status for one in answers] == [200, 200]
    finally:
        worker.terminate()
        worker.wait(20)
        units.end()
    for name in ("worker.log", "g1.log"):
        assert "iolation" not in (server.folder / name).read_text(), name


async def listens(client: Client, subject: str) -> None:
    await client.subscribe(subject)
    await client.flush()


async def speaks(client: Client, subject: str) -> None:
    await client.publish(subject, b"x")
    await client.flush()


REFUSED: list[tuple[str, Callable[[Client, str], Coroutine[Any, Any, None]], str]] = [
    ("gateway", listens, "work.*"),
    ("gateway", listens, "_INBOX.>"),
    ("gateway", speaks, "$JS.API.CONSUMER.MSG.NEXT.WORK.work-minilm"),
    ("gateway", speaks, "$JS.API.STREAM.DELETE.WORK"),
    ("gateway", speaks, "answer.b.1"),
    ("worker", listens, "answer.>"),
    ("worker", speaks, "work.minilm"),
    ("worker", speaks, "$JS.API.STREAM.PURGE.WORK"),
    ("worker", listens, "_INBOX.operator.>"),
    ("operator", listens, "answer.>"),
    ("operator", speaks, "work.minilm"),
]


@pytest.mark.parametrize(("role", "tries", "subject"), REFUSED)
def test_what_is_another_roles_is_refused(
    server: NatsServer, role: str, tries: Callable[[Client, str], Coroutine[Any, Any, None]], subject: str
) -> None:
    async def story() -> str:
        client = await connected(server, role)
        await tries(client, subject)
        await asyncio.sleep(0.05)
        told = str(client.last_error)
        await client.close()
        return told

    assert "ermissions violation" in asyncio.run(story()).replace("Permissions Violation", "permissions violation")


def test_nobody_without_a_password_is_let_in(server: NatsServer) -> None:
    async def story() -> None:
        await nats.connect(wire.NatsAccess((server.url,)), "nobody", wait=1)

    with pytest.raises(nats.QueueError):
        asyncio.run(story())


@needs_openssl
def test_with_a_certificate_only_who_trusts_it_talks_to_nats(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path, "fleet")
    server = NatsServer(tmp_path)
    text = files_of("queue", tmp_path, tls={"certificate": str(certificate), "key": str(key)})["nats.conf"]
    text = text.replace("10.0.0.1:4222", f"127.0.0.1:{server.port}").replace(
        "/var/lib/fleetctl-nats", str(tmp_path / "s")
    )
    server.config.write_text(text.replace("/run/credentials/fleetctl-nats.service", str(tmp_path)))
    server.start()

    async def connects(url: str, ca: str) -> None:
        access = wire.NatsAccess((url,), "worker", str(tmp_path / "worker"), ca)
        client = await nats.connect(access, "worker", wait=1)
        await client.flush()
        await client.close()

    url = f"tls://127.0.0.1:{server.port}"
    try:
        asyncio.run(connects(url, str(certificate)))
        with pytest.raises(nats.QueueError, match="certificate verify failed"):
            asyncio.run(connects(url, ""))
    finally:
        server.stop()


@pytest.mark.parametrize("name", ["1", "10k", "true", "7"])
def test_a_box_of_any_name_gets_a_configuration_that_nats_reads(tmp_path: Path, name: str) -> None:
    text = files_of("queue", tmp_path)["nats.conf"]
    assert 'server_name: "a"' in text
    path = tmp_path / "nats.conf"
    path.write_text(text.replace('server_name: "a"', f'server_name: "{name}"'))
    told = subprocess.run([PROGRAM, "-t", "-c", str(path)], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
