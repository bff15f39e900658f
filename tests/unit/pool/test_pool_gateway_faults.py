"""What clients see when a gateway, NATS or a worker goes away in the middle."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from echo_worker import EchoWorker, embedding
from gateways import MODELS, ROOT, Answer, GatewayProcess, gateway, until, worker
from natsserver import NatsServer, free_port, needs_nats, running
from poolworker import config, engine, working
from poolworker import until as settled

from fleetctl.pool import nats as pool_nats
from fleetctl.pool import wire
from fleetctl.pool.gateway import queue as queue_module
from fleetctl.pool.gateway.queue import Queue
from fleetctl.pool.gateway.refusals import Refusal
from fleetctl.pool.gateway.uploads import Room, Uploads
from fleetctl.pool.wire import Envelope, Frame, Kind

pytestmark = needs_nats
EMBED = {"input": "hello", "model": "minilm"}
STREAM = {"messages": [], "model": "gen", "stream": True}
JSON = {"content-type": "application/json"}


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    with running(tmp_path) as server:
        yield server


class Held:
    """A behaviour: answers only once it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.answered: list[str] = []

    async def __call__(self, one: EchoWorker, envelope: Envelope, body: bytes) -> AsyncIterator[Frame]:
        await asyncio.to_thread(self.go.wait, 20)
        self.answered.append(envelope.id)
        yield Frame(Kind.WHOLE, body)


def test_it_may_be_started_before_nats(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    process = GatewayProcess(tmp_path, server.access).ready(healthy=503)
    try:
        answer = process.post("/v1/embeddings", EMBED, {"x-deadline-ms": "200"})
        assert (answer.status, answer.error["code"]) == (503, "queue_away")
        assert answer.headers["retry-after"]
        server.start()
        process.ready()
        with worker(server.access):
            assert process.post("/v1/embeddings", EMBED).status == 200
    finally:
        process.stop(signal.SIGKILL)
        server.stop(signal.SIGKILL)


def test_requests_that_wait_outlive_a_restart_of_nats(nats: NatsServer, tmp_path: Path) -> None:
    held = Held()
    with gateway(tmp_path, nats.access) as ours, worker(nats.access, held) as at_work, ThreadPoolExecutor(9) as clients:
        answers = [clients.submit(ours.post, "/v1/embeddings", EMBED | {"input": str(n)}) for n in range(8)]
        until(lambda: len(at_work.seen) == 8)
        nats.stop(signal.SIGKILL)
        late = clients.submit(ours.post, "/v1/embeddings", EMBED | {"input": "while it is away"})
        nats.start()
        ours.ready()
        until(lambda: at_work.client.is_connected)
        held.go.set()
        assert [one.result(20).status for one in [*answers, late]] == [200] * 9
        assert len(set(held.answered)) == 9


def test_an_answer_that_was_lost_while_nats_was_away_is_asked_for(nats: NatsServer, tmp_path: Path) -> None:
    async def loses(_: EchoWorker, envelope: Envelope, body: bytes) -> AsyncIterator[Frame]:
        if envelope.body == "never":
            yield Frame(Kind.WHOLE)

    with gateway(tmp_path, nats.access) as ours, worker(nats.access, loses) as at_work, ThreadPoolExecutor(1) as client:
        answer = client.submit(ours.post, "/v1/embeddings", EMBED)
        until(lambda: len(at_work.seen) == 1)
        envelope = at_work.seen[0][0]
        nats.stop()
        nats.start()
        until(lambda: bool(at_work.asked))
        assert at_work.asked[0] == (wire.ask_subject(envelope.id), envelope.answer)
        asyncio.run_coroutine_threadsafe(
            at_work.send(envelope.answer, Frame(Kind.WHOLE, b"kept")), at_work.loop
        ).result(10)
        assert answer.result(20).body == b"kept"


def test_a_stream_that_had_begun_ends_with_an_error_when_nats_goes(nats: NatsServer, tmp_path: Path) -> None:
    async def begins(_: EchoWorker, envelope: Envelope, body: bytes) -> AsyncIterator[Frame]:
        yield Frame(Kind.BEGIN, b"data: 1\n\n", 200, "text/event-stream")
        await asyncio.sleep(1000)

    with gateway(tmp_path, nats.access) as ours, worker(nats.access, begins):
        client = ours.connect()
        client.request("POST", "/v1/chat/completions", json.dumps(STREAM), JSON)
        answer = client.getresponse()
        assert answer.read1() == b"data: 1\n\n"
        nats.stop(signal.SIGKILL)
        rest = answer.read()
        assert rest.startswith(b'data: {"error": {"message": "the answer broke off: the gateway lost its connection')


def test_another_gateway_takes_over_the_client_of_one_that_died(nats: NatsServer, tmp_path: Path) -> None:
    held = Held()
    given = {"x-request-id": "from-haproxy-1"}
    with (
        gateway(tmp_path, nats.access, "g1") as first,
        gateway(tmp_path, nats.access, "g2") as second,
        worker(nats.access, held) as at_work,
        ThreadPoolExecutor(2) as clients,
    ):
        lost = clients.submit(first.post, "/v1/embeddings", EMBED, given)
        until(lambda: len(at_work.seen) == 1)
        first.stop(signal.SIGKILL)
        assert isinstance(lost.exception(20), OSError)
        answer = clients.submit(second.post, "/v1/embeddings", EMBED, given)
        until(lambda: len(at_work.asked) >= 2)
        subject, where = at_work.asked[0]
        assert subject == wire.ask_subject(at_work.seen[0][0].id)
        assert where.startswith("answer.g2.")
        asyncio.run_coroutine_threadsafe(at_work.send(where, Frame(Kind.WHOLE, b"once")), at_work.loop).result(10)
        assert answer.result(20).body == b"once"
        assert len(at_work.seen) == 1
        held.go.set()


def test_sigterm_lets_what_is_under_way_finish(nats: NatsServer, tmp_path: Path) -> None:
    held = Held()
    with gateway(tmp_path, nats.access) as ours, worker(nats.access, held) as at_work, ThreadPoolExecutor(2) as clients:
        answer = clients.submit(ours.post, "/v1/embeddings", EMBED)
        until(lambda: len(at_work.seen) == 1)
        ours.process.send_signal(signal.SIGTERM)

        def refused() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", ours.port)) != 0

        until(refused)
        assert ours.process.poll() is None
        held.go.set()
        assert answer.result(20).status == 200
        assert ours.process.wait(20) == 0


def test_a_begun_answer_that_falls_silent_and_one_that_is_not_confirmed_come_to_an_end(
    nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_module, "SILENT", 0.2)
    monkeypatch.setattr(queue_module, "AWAY", 0.7)
    monkeypatch.setattr(queue_module, "SEND_EVERY", 0.2)

    def envelope(name: str) -> Envelope:
        return Envelope(name, "gen", "/v1/completions", wire.answer_subject("g1", name), 1 << 60, 1)

    async def main() -> None:
        client = await pool_nats.connect(nats.access, "test", wait=10)
        queue = Queue("g1")
        await queue.open(client)
        unconfirmed = await queue.publish(envelope("a"), b"x", 9)  # there is no stream yet
        with pytest.raises(Refusal, match="does not confirm"):
            await unconfirmed.next()
        again = await queue.publish(envelope("c"), b"x", 9)
        await pool_nats.make_streams(client.jetstream())  # now there is one, and it is sent again
        while again.message is not None:
            await asyncio.sleep(0.01)
        silent = await queue.publish(envelope("b"), b"x", 9)
        await client.publish(silent.subject, Frame(Kind.BEGIN, b"1").pack())
        assert (await silent.next()).body == b"1"
        with pytest.raises(Refusal, match="nothing came"):
            await silent.next()
        await client.publish(wire.answer_subject("g1", "nobody"), Frame(Kind.WHOLE).pack())
        while queue.unexpected != 1:
            await asyncio.sleep(0.01)
        with pytest.raises(Refusal, match="same x-request-id"):
            await queue.publish(envelope("b"), b"x", 9)
        await queue.close()
        await client.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"surprise": 1}, "GatewayConfig in a configuration has no surprise"),
        ({"listen": {"host": "192.0.2.1", "port": 1}}, "cannot listen on 192.0.2.1:1"),
        ({"nats": {"servers": ["nats://127.0.0.1:1"], "user": "g", "password_file": "/none"}}, "/none cannot be read"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_said_in_one_line(tmp_path: Path, change: object, said: str) -> None:
    config = wire.GatewayConfig("g1", wire.NatsAccess(("nats://127.0.0.1:1",)), wire.Listen("127.0.0.1", 0), MODELS)
    file = tmp_path / "gateway.json"
    file.write_text(json.dumps({**wire.as_json(config), **dict(change)}))  # type: ignore[call-overload]
    argv = [sys.executable, "-m", "fleetctl.pool.gateway", str(file)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        listen = wire.Listen("127.0.0.1", other.getsockname()[1])
        access = wire.NatsAccess((f"nats://127.0.0.1:{free_port()}",))
        file = tmp_path / "gateway.json"
        file.write_text(json.dumps(wire.as_json(wire.GatewayConfig("g1", access, listen, MODELS))))
        argv = [sys.executable, "-m", "fleetctl.pool.gateway", str(file)]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=30)
        assert (done.returncode, "Address already in use" in done.stderr) == (2, True)


def test_a_full_store_of_long_bodies_is_said_before_they_are_read_and_short_requests_go_on(
    nats: NatsServer, tmp_path: Path
) -> None:
    def body(size: int) -> bytes:
        return b'{"model":"minilm","input":"' + b"x" * size + b'"}'

    with gateway(tmp_path, nats.access, store=5 << 20) as ours, worker(nats.access, embedding) as one:
        one.removes = False
        assert ours.post("/v1/embeddings", body(6_000_000)).status == 413  # it would never fit
        assert ours.post("/v1/embeddings", body(2_000_000)).status == 200
        client = ours.connect()
        client.putrequest("POST", "/v1/embeddings")
        for name, value in (("content-type", "application/json"), ("content-length", "2500000")):
            client.putheader(name, value)
        client.endheaders()
        answer = Answer(client.getresponse())
        assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (429, "store_full", "5")
        assert ours.post("/v1/embeddings", EMBED).status == 200


def test_a_body_of_unknown_length_may_be_as_long_as_a_small_store_has_room(nats: NatsServer, tmp_path: Path) -> None:
    def send(size: int) -> Answer:
        body = b'{"model":"minilm","input":"' + b"x" * size + b'"}'
        client = ours.connect()
        client.request("POST", "/v1/embeddings", iter([body]), JSON, encode_chunked=True)
        return Answer(client.getresponse())

    with gateway(tmp_path, nats.access, store=5 << 20) as ours, worker(nats.access, embedding):
        assert (send(1_500_000).status, send(1_500_000).status) == (200, 200)
        longer = send(4_500_000)
        assert (longer.status, longer.error["code"], send(100).status) == (429, "store_full", 200)


def test_what_a_body_of_unknown_length_did_not_take_is_free_at_once(nats: NatsServer) -> None:
    async def sixteen() -> None:
        client = await pool_nats.connect(nats.access, "test", wait=10)
        await pool_nats.make_bucket(client.jetstream(), store=10 << 20)
        uploads = Uploads(Room(client.jetstream(), 10 << 20), lambda: False)
        for _ in range(16):
            async with uploads.turn(None, 6 << 20, 10):
                uploads.brought(100_000)
        await client.close()

    asyncio.run(sixteen())


def test_an_id_that_is_used_again_after_its_answer_is_gone_is_refused_at_once(nats: NatsServer, tmp_path: Path) -> None:
    given = {"x-request-id": "used-twice"}
    with gateway(tmp_path, nats.access) as ours, worker(nats.access, embedding) as one:
        assert ours.post("/v1/embeddings", EMBED, given).status == 200
        assert ours.post("/v1/embeddings", EMBED, given).status == 200  # the worker has the answer yet
        one.kept.clear()
        one.asked.clear()
        again = ours.post("/v1/embeddings", EMBED, given)
        assert (again.status, again.error["code"]) == (409, "duplicate_request")
        assert len(one.asked) <= 3  # long before its deadline
        assert ours.post("/v1/embeddings", EMBED, {"x-request-id": "another"}).status == 200


def test_the_id_of_a_request_that_was_cancelled_is_refused_at_once(nats: NatsServer, tmp_path: Path) -> None:
    given = {"x-request-id": "cancelled", "content-type": "application/json"}
    slow = {"model": "gen", "prompt": "slow 20000"}

    async def again() -> None:
        one = engine(tmp_path, "gen", task="generate", pinned=True)
        async with working(config(nats.access, one)) as at_work:
            with gateway(tmp_path, nats.access) as ours:
                client = ours.connect()
                client.request("POST", "/v1/completions", json.dumps(slow), given)
                await settled(lambda: bool(at_work.intake.held))
                client.close()
                await settled(lambda: not at_work.intake.held)
                answer = await asyncio.wait_for(asyncio.to_thread(ours.post, "/v1/completions", slow, given), 10)
                assert (answer.status, answer.error["code"]) == (409, "duplicate_request")

    asyncio.run(again())
