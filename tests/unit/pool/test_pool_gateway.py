"""A gateway as its clients see it, between a real nats-server and a worker that does what the test says."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import msgpack
import pytest
from echo_worker import EchoWorker, echo
from gateways import GatewayProcess, gateway, until, worker
from natsserver import NatsServer, needs_nats, running

from fleetctl.pool import wire
from fleetctl.pool.wire import Envelope, Frame, Kind

pytestmark = needs_nats
EMBED = {"input": "hello", "model": "all-minilm"}
JSON = {"content-type": "application/json"}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "model"}], "model": "gen"}


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with running(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture(scope="module")
def ours(nats: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("gateway")
    with gateway(folder, nats.access, most_body=40 << 20, deadline=20.0) as process:
        yield process


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        ("/v1/embeddings", EMBED, "minilm"),
        ("/v1/embeddings", {"input": {"model": "gen"}, "model": "lab/all-MiniLM"}, "minilm"),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "model": "order"}, "order"),
        ("/v1/completions", {"prompt": "a", "model": "gen"}, "gen"),
        ("/v1/chat/completions", CHAT, "gen"),
    ],
)
def test_a_request_goes_to_its_model_untouched_and_the_answer_comes_back(
    nats: NatsServer, ours: GatewayProcess, path: str, body: dict[str, Any], model: str
) -> None:
    with worker(nats.access) as at_work:
        sent = json.dumps(body, indent=3).encode()
        answer = ours.post(path, sent)
        assert (answer.status, answer.body) == (200, sent)
        assert answer.headers["content-type"] == "application/json"
        envelope = at_work.seen[0][0]
        assert (envelope.model, envelope.path, envelope.size, envelope.stream) == (model, path, len(sent), False)
        assert answer.headers["x-request-id"] == envelope.id


def test_what_the_head_says_travels_with_the_request(nats: NatsServer, ours: GatewayProcess) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"x-deadline-ms": "7000", "traceparent": trace, "accept": "application/msgpack", "x-request-id": "r1"}
    with worker(nats.access) as at_work:
        before = time.time() * 1000
        assert (
            ours.post("/v1/completions", {"prompt": "x" * 400, "model": "gen", "max_tokens": 50}, headers).status == 200
        )
        assert ours.post("/v1/completions", {"prompt": "x", "model": "gen"}, {"traceparent": "bad"}).status == 200
        (first, size), (second, _) = at_work.seen
        assert before + 6500 < first.deadline < time.time() * 1000 + 7000
        assert (first.trace, first.accept, second.trace) == (trace, "application/msgpack", "")
        assert first.cost == -(-size // 4) + 50
        assert first.id.startswith("r1.")


def test_message_pack_goes_through_with_binary_inputs_as_bytes(nats: NatsServer, ours: GatewayProcess) -> None:
    body = msgpack.packb({"input": [bytes(range(256)) * 10], "model": "all-minilm"})
    with worker(nats.access) as at_work:
        answer = ours.post("/v1/embeddings", body, {"content-type": "application/msgpack"})
        assert (answer.status, answer.body) == (200, body)
        assert answer.headers["content-type"] == at_work.seen[0][0].content_type == "application/msgpack"
        ours.post("/v1/embeddings", body, {"content-type": "application/msgpack", "accept": "application/json"})
        ours.post("/v1/embeddings", EMBED, {"accept": "*/*"})
        answers = [envelope.accept for envelope, _ in at_work.seen]
        assert answers == ["application/msgpack", "application/json", "application/json"]


def test_the_model_in_the_header_wins(nats: NatsServer, ours: GatewayProcess) -> None:
    with worker(nats.access) as at_work:
        assert ours.post("/v1/embeddings", {"input": "a", "model": "nobody"}, {"x-model": "minilm"}).status == 200
        assert ours.post("/v1/embeddings", b"not even JSON", {"x-model": "minilm"}).status == 200
        assert [envelope.model for envelope, _ in at_work.seen] == ["minilm", "minilm"]


def test_a_streamed_answer_is_passed_on_as_its_pieces_come(nats: NatsServer, ours: GatewayProcess) -> None:
    go = threading.Event()

    async def slowly(_: EchoWorker, envelope: Envelope, body: bytes) -> AsyncIterator[Frame]:
        yield Frame(Kind.ALIVE)
        yield Frame(Kind.BEGIN, b"data: 1\n\n", 200, "text/event-stream; charset=utf-8")
        await asyncio.to_thread(go.wait, 20)
        yield Frame(Kind.ALIVE)
        yield Frame(Kind.MORE, b"data: 2\n\n")
        yield Frame(Kind.END, b"data: [DONE]\n\n")

    with worker(nats.access, slowly) as at_work:
        client = ours.connect()
        client.request(
            "POST", "/v1/chat/completions", json.dumps({**CHAT, "stream": True}), {"content-type": "application/json"}
        )
        answer = client.getresponse()
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.read1() == b"data: 1\n\n"
        assert at_work.seen[0][0].stream
        go.set()
        assert answer.read() == b"data: 2\n\ndata: [DONE]\n\n"


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "said"),
    [
        ("/v1/embeddings", {"input": "a", "model": "nobody"}, {}, 404, "`nobody` does not exist"),
        ("/v1/embeddings", {"input": "a", "model": 'a"b\ud800'}, {}, 404, "does not exist"),
        ("/v1/embeddings", EMBED, {"x-model": "nobody"}, 404, "`nobody` does not exist"),
        ("/v1/embeddings", {"input": "a"}, {}, 400, "no model is named"),
        ("/v1/embeddings", {"input": {"model": "minilm"}}, {}, 400, "no model is named"),
        ("/v1/embeddings", {"input": "a", "model": ["minilm"]}, {}, 400, "no model is named"),
        ("/v1/embeddings", b"", {}, 400, "no model is named"),
        ("/v1/embeddings", b"[" * 100_000, {}, 400, "no model is named"),
        ("/v1/chat/completions", {"messages": [], "model": "minilm"}, {}, 400, "is a model for embed"),
        ("/v1/embeddings", EMBED, {"content-type": "text/plain"}, 415, "has to be application/json"),
        ("/v1/embeddings", EMBED, {"content-encoding": "gzip"}, 415, "must not be compressed"),
        ("/v1/embeddings", EMBED, {"x-deadline-ms": "soon"}, 400, "x-deadline-ms has to be"),
        ("/v1/embeddings", EMBED, {"x-deadline-ms": "0"}, 400, "x-deadline-ms has to be"),
        ("/v1/images", EMBED, {}, 404, "there is no /v1/images here"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_the_words_of_openai(
    ours: GatewayProcess, path: str, body: Any, headers: dict[str, str], status: int, said: str
) -> None:
    answer = ours.post(path, body, headers)
    assert answer.status == status
    assert said in answer.error["message"]
    assert set(answer.error) == {"message", "type", "param", "code"}


def test_pages(ours: GatewayProcess) -> None:
    names = [one["id"] for one in json.loads(ours.get("/v1/models").body)["data"]]
    assert names == ["all-minilm", "gen", "idle", "lab/all-MiniLM", "order"]
    assert json.loads(ours.get("/v1/models/lab%2Fall-MiniLM").body)["id"] == "lab/all-MiniLM"
    assert ours.get("/v1/models/nobody").status == 404
    assert ours.get("/health").body == b'{"status": "ok"}'
    assert ours.get("/v1/embeddings").status == ours.post("/health", {}).status == 405
    assert ours.metric("fleetctl_gateway_connected") == 1


def test_an_error_of_the_engine_comes_back_as_it_is(nats: NatsServer, ours: GatewayProcess) -> None:
    async def fails(_: EchoWorker, envelope: Envelope, body: bytes) -> AsyncIterator[Frame]:
        yield Frame(Kind.FAILED, b'{"error":{"message":"bad dimensions"}}', 422)

    with worker(nats.access, fails):
        answer = ours.post("/v1/embeddings", EMBED)
        assert (answer.status, answer.error["message"]) == (422, "bad dimensions")


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
def test_an_answer_that_breaks_off_is_seen_to_be_broken(nats: NatsServer, ours: GatewayProcess, kind: str) -> None:
    async def breaks(_: EchoWorker, envelope: Envelope, body: bytes) -> AsyncIterator[Frame]:
        yield Frame(Kind.BEGIN, b"data: 1\n\n", 200, kind)
        yield Frame(Kind.FAILED, b'{"error":\n{"message":"the engine died"}}', 502)

    with worker(nats.access, breaks):
        if kind == "application/json":
            with pytest.raises(Exception, match=r"IncompleteRead|Connection"):
                ours.post("/v1/chat/completions", {**CHAT, "stream": True})
        else:
            body = ours.post("/v1/chat/completions", {**CHAT, "stream": True}).body
            assert body == b'data: 1\n\ndata: {"error":\ndata: {"message":"the engine died"}}\n\n'


def test_a_request_that_takes_too_long_ends_at_its_deadline_and_is_cancelled(
    nats: NatsServer, ours: GatewayProcess
) -> None:
    async def never(_: EchoWorker, envelope: Envelope, body: bytes) -> AsyncIterator[Frame]:
        await asyncio.sleep(1000)
        yield Frame(Kind.WHOLE)

    with worker(nats.access, never) as at_work:
        answer = ours.post("/v1/embeddings", EMBED, {"x-deadline-ms": "300"})
        assert answer.status == 504
        assert "minilm had no answer within 0.3 s" in answer.error["message"]
        until(lambda: at_work.cancelled == [wire.token(at_work.seen[0][0].id)])


def test_a_client_that_goes_away_takes_its_request_with_it(nats: NatsServer, ours: GatewayProcess) -> None:
    async def never(_: EchoWorker, envelope: Envelope, body: bytes) -> AsyncIterator[Frame]:
        await asyncio.sleep(1000)
        yield Frame(Kind.WHOLE)

    before = ours.metric('fleetctl_gateway_cancelled_total{model="minilm"}')
    with worker(nats.access, never) as at_work:
        client = ours.connect()
        client.request("POST", "/v1/embeddings", json.dumps(EMBED), JSON)
        until(lambda: len(at_work.seen) == 1)
        client.close()
        until(lambda: at_work.cancelled == [wire.token(at_work.seen[0][0].id)])
        assert ours.metric('fleetctl_gateway_cancelled_total{model="minilm"}') == before + 1
        assert ours.metric("fleetctl_gateway_requests_under_way") == 0


def test_a_full_queue_is_refused_with_the_time_to_come_back(nats: NatsServer, ours: GatewayProcess) -> None:
    body = {"input": "hello", "model": "idle"}
    with ThreadPoolExecutor(30) as clients:
        headers = {"x-deadline-ms": "1500"}
        answers = list(clients.map(lambda _: ours.post("/v1/embeddings", body, headers), range(30)))
    assert sorted(one.status for one in answers) == [429] * 10 + [504] * 20
    refused = next(one for one in answers if one.status == 429)
    assert refused.error["type"] == "rate_limit_error"
    assert 1 <= int(refused.headers["retry-after"]) <= 60


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("size", [wire.INLINE_BODY - 100, wire.INLINE_BODY + 1, 5_000_000])
def test_a_long_body_goes_through_the_store(nats: NatsServer, ours: GatewayProcess, size: int, chunked: bool) -> None:
    body = json.dumps(
        {"input": hashlib.sha256(b"%d" % size).hexdigest() * (size // 64), "model": "all-minilm"}
    ).encode()

    async def digest(_: EchoWorker, envelope: Envelope, found: bytes) -> AsyncIterator[Frame]:
        assert envelope.size == len(found)
        yield Frame(Kind.WHOLE, hashlib.sha256(found).hexdigest().encode())

    with worker(nats.access, digest) as at_work:
        client = ours.connect()
        sent = iter([body[i : i + 100_000] for i in range(0, len(body), 100_000)]) if chunked else body
        client.request("POST", "/v1/embeddings", sent, JSON, encode_chunked=chunked)
        assert client.getresponse().read().decode() == hashlib.sha256(body).hexdigest()
        assert bool(at_work.seen[0][0].body) == (len(body) > wire.INLINE_BODY)


def left_in_store(at_work: EchoWorker) -> int:
    """Messages of bodies that are still stored, but for the marks of those that a worker removed."""

    async def count() -> int:
        info = await at_work.js.stream_info(f"OBJ_{wire.BODIES}", subjects_filter="$O.bodies.C.>")
        return len(info.state.subjects or {})

    return asyncio.run_coroutine_threadsafe(count(), at_work.loop).result(10)


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b'{"model":"nobody","input":"' + b"x" * 8_000_000 + b'"}', {}, 404),
        (b'{"input":"' + b"x" * 3_000_000 + b'","model":"nobody"}', {}, 404),
        (b'{"input":"' + b"x" * 3_000_000 + b'"}', {}, 400),
        (b'{"model":"all-minilm","input":"' + b"x" * (41 << 20) + b'"}', {}, 413),
        (b'{"model":"all-minilm","input":"' + b"x" * (41 << 20) + b'"}', {"transfer-encoding": "chunked"}, 413),
    ],
)
def test_a_long_body_that_is_refused_leaves_nothing_behind(
    nats: NatsServer, ours: GatewayProcess, body: bytes, headers: dict[str, str], status: int
) -> None:
    with worker(nats.access) as at_work:
        before = left_in_store(at_work)
        client = ours.connect()
        chunked = bool(headers)
        pieces = iter([body[i : i + 1_000_000] for i in range(0, len(body), 1_000_000)])
        with suppress(ConnectionError):  # it had its answer before it had sent all
            client.request("POST", "/v1/embeddings", pieces if chunked else body, JSON, encode_chunked=chunked)
        assert client.getresponse().status == status
        assert at_work.seen == []
        until(lambda: left_in_store(at_work) == before)


def test_a_long_body_that_breaks_off_leaves_nothing_behind(nats: NatsServer, ours: GatewayProcess) -> None:
    with worker(nats.access) as at_work:
        before = left_in_store(at_work)
        with socket.create_connection(("127.0.0.1", ours.port)) as client:
            head = b"POST /v1/embeddings HTTP/1.1\r\ncontent-type: application/json\r\n"
            client.sendall(head + b"content-length: 9000000\r\n\r\n")
            client.sendall(b'{"model":"all-minilm","input":"' + b"x" * 4_000_000)
            until(lambda: left_in_store(at_work) > before)
        until(lambda: left_in_store(at_work) == before)
        assert at_work.seen == []


@pytest.mark.parametrize("size", [b"100", b"9000000"])
def test_a_body_that_does_not_come_in_time_is_given_up(nats: NatsServer, ours: GatewayProcess, size: bytes) -> None:
    with worker(nats.access) as at_work, socket.create_connection(("127.0.0.1", ours.port)) as client:
        before = left_in_store(at_work)
        head = b"POST /v1/embeddings HTTP/1.1\r\ncontent-type: application/json\r\nx-deadline-ms: 300\r\n"
        client.sendall(head + b"content-length: %b\r\n\r\n" % size)
        client.sendall(b'{"model":"all-minilm","input":"' + b"x" * (int(size) // 2))
        assert client.recv(65536).startswith(b"HTTP/1.1 408")
        until(lambda: left_in_store(at_work) == before)


def test_many_clients_at_once_get_their_own_answers(nats: NatsServer, ours: GatewayProcess) -> None:
    with worker(nats.access), ThreadPoolExecutor(16) as clients:
        bodies = [json.dumps({"input": str(number), "model": "all-minilm"}).encode() for number in range(300)]
        assert [one.body for one in clients.map(lambda body: ours.post("/v1/embeddings", body), bodies)] == bodies


def test_an_id_that_is_used_twice_brings_no_other_answer(nats: NatsServer, ours: GatewayProcess) -> None:
    with worker(nats.access):
        for text in ("one", "two"):
            answer = ours.post(
                "/v1/embeddings", {"input": text, "model": "minilm"}, {"x-request-id": "always-the-same"}
            )
            assert json.loads(answer.body)["input"] == text


def test_a_slow_request_does_not_hold_up_others(nats: NatsServer, ours: GatewayProcess) -> None:
    release = threading.Event()

    async def held(one: EchoWorker, envelope: Envelope, body: bytes) -> AsyncIterator[Frame]:
        if b"slow" in body:
            await asyncio.to_thread(release.wait, 20)
        async for frame in echo(one, envelope, body):
            yield frame

    with worker(nats.access, held) as at_work, ThreadPoolExecutor(1) as clients:
        slow = clients.submit(ours.post, "/v1/embeddings", {"input": "slow", "model": "minilm"})
        until(lambda: len(at_work.seen) == 1)
        assert ours.post("/v1/embeddings", EMBED).status == 200
        assert not slow.done()
        release.set()
        assert slow.result(20).status == 200
