"""NATS as it is rendered: each role may do what it has to do, and nothing that is another's."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import poolworker
import pytest
import yaml
from gateways import gateway
from nats.aio.client import Client
from natsserver import PROGRAM, NatsServer, needs_nats

from fleetctl.pool import nats, wire
from fleetctl.render.layout import render_layout
from fleetctl.render.release import File
from fleetctl.run.fill import Filler
from fleetctl.spec.fleet import Fleet

GOLDEN = Path(__file__).parents[1] / "golden"
ODD = 'o"d\\d $pa:ss/w@rd'
"""A password with everything in it that one of the readers on its way could take for something else."""
pytestmark = needs_nats


def files_of(fleet: str, folder: Path) -> dict[str, str]:
    """Files of NATS on box a by their name, with these passwords in them."""
    document = yaml.safe_load((GOLDEN / f"{fleet}.yaml").read_text())
    for role in document["pool"]["nats"]["passwords"]:
        path = folder / role
        path.write_text(f"{ODD}{role}\n")
        document["pool"]["nats"]["passwords"][role] = {"file": str(path)}
    release = render_layout(Fleet.model_validate(document), "pool")
    fill: Callable[[File], str] = Filler()
    return {
        Path(file.path).name: fill(file) for file in release.files["a"] if file.path.startswith("/etc/fleetctl/pool")
    }


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


def test_three_servers_find_each_other_with_their_password(tmp_path: Path) -> None:
    """Read by the program itself, without what is about files that only a box has."""
    files = files_of("cluster", tmp_path)
    text = re.sub(r"(?ms)^( *)tls \{.*?^\1\}\n", "", files["nats.conf"])
    (tmp_path / "nats.conf").write_text(text.replace("/var/lib/fleetctl-nats", str(tmp_path)))
    (tmp_path / "routes.conf").write_text(files["routes.conf"])
    assert PROGRAM
    done = subprocess.run(
        [PROGRAM, "-t", "-c", str(tmp_path / "nats.conf")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "10.0.0.2:6222" in files["routes.conf"] and ODD not in files["routes.conf"]
