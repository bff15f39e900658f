"""The worker with a real nats-server and engines that are processes: requests, merged and not, answered once."""

from __future__ import annotations

import asyncio
import json
import signal
import struct
from pathlib import Path

import msgpack
import pytest
from natsserver import NatsServer, needs_nats
from poolworker import Asker, asking, config, engine, seen, until, working
from standin_engine import embedding

from fleetctl.pool import nats, wire
from fleetctl.pool.client import Client as Http
from fleetctl.pool.worker.engine import Engine
from fleetctl.pool.worker.request import Request

pytestmark = needs_nats


def test_a_request_is_answered_and_acknowledged(server: NatsServer, tmp_path: Path) -> None:
    async def answered() -> None:
        async with asking(server.access) as asker, working(config(server.access, engine(tmp_path, "m", pinned=True))):
            request = await asker.send("m", "hello")
            assert await asker.embedding(request) == [embedding("hello")]
            assert asker.frames[request][0].worker == "box1"
            await _empty(asker)

    asyncio.run(answered())


def test_embeddings_that_wait_become_one_call_and_each_gets_its_own_back(server: NatsServer, tmp_path: Path) -> None:
    async def merged() -> None:
        one = engine(tmp_path, "m", pinned=True)
        async with asking(server.access) as asker, working(config(server.access, one)):
            first = [await asker.send("m", f"slow 300 {n}") for n in range(2)]
            await asyncio.sleep(0.1)  # both calls of the engine are taken: what comes now waits, and goes together
            texts = [["a", "bb"], "ccc", ["dddd"], *(f"text {n}" for n in range(20))]
            requests = [await asker.send("m", text) for text in texts]
            for request, text in zip(requests, texts, strict=True):
                answer = await asker.json(request)
                expected = text if isinstance(text, list) else [text]
                assert [each["index"] for each in answer["data"]] == list(range(len(expected)))
                assert [each["embedding"] for each in answer["data"]] == [embedding(each) for each in expected]
                assert answer["usage"]["total_tokens"] > 0
            total = [(await asker.json(request))["usage"]["total_tokens"] for request in requests]
            assert sum(total) == sum(
                len(each) for text in texts for each in ([text] if isinstance(text, str) else text)
            )
            for request in first:
                await asker.answer(request)
            counted = await seen(one.unit)
            assert counted["calls"] <= 8
            assert counted["inputs"] == 26

    asyncio.run(merged())


def test_while_much_waits_requests_of_like_length_go_together(server: NatsServer, tmp_path: Path) -> None:
    async def chosen() -> None:
        one = engine(tmp_path, "m", pinned=True, concurrency=4, batch_tokens=1 << 20)
        async with asking(server.access) as asker, working(config(server.access, one)) as worker:
            calls: list[list[int]] = []
            desk = worker.desks["m"]
            start = desk._start

            def noted(engine: Engine, group: list[Request]) -> None:
                calls.append([request.envelope.size for request in group])
                start(engine, group)

            desk._start = noted
            for text in ("slow 60", "slow 60 " + 2000 * "x"):
                await asker.json(await asker.send("m", text))
            calls.clear()
            sent = [await asker.send("m", f"slow 60 {n} " + (2000 * "x" if n % 2 else "")) for n in range(48)]
            for request in sent:
                await asker.json(request)
            assert sum(map(len, calls)) == 48
            assert sum(max(sizes) > 1000 for sizes in calls) < 0.8 * len(calls)  # by their order all would have one
            assert desk.awaited == {}

    asyncio.run(chosen())


def test_a_queue_that_hangs_does_not_keep_engines_from_what_is_here(server: NatsServer, tmp_path: Path) -> None:
    async def hangs() -> None:
        one = engine(tmp_path, "m", pinned=True, concurrency=4, batch_tokens=1 << 20)
        async with asking(server.access) as asker, working(config(server.access, one)) as worker:
            desk = worker.desks["m"]
            for text in ("slow 60", "slow 60 " + 2000 * "x"):
                await asker.json(await asker.send("m", text))
            sent = [await asker.send("m", f"slow 60 {n} " + (2000 * "x" if n % 2 else "")) for n in range(100)]
            await until(lambda: len(desk.lines["work"]) >= 8)
            assert server.process is not None
            server.process.send_signal(signal.SIGSTOP)
            try:
                await until(lambda: not desk.lines["work"], 5)  # sooner than the connection counts as gone
            finally:
                server.process.send_signal(signal.SIGCONT)
            for request in sent:
                await asker.json(request)

    asyncio.run(hangs())


def test_one_bad_input_fails_alone(server: NatsServer, tmp_path: Path) -> None:
    async def failed() -> None:
        async with asking(server.access) as asker, working(config(server.access, engine(tmp_path, "m", pinned=True))):
            for n in range(2):
                await asker.send("m", f"slow 200 {n}")
            await asyncio.sleep(0.1)
            requests = [await asker.send("m", text) for text in ("good", "bad", "also good")]
            assert await asker.embedding(requests[0]) == [embedding("good")]
            assert await asker.embedding(requests[2]) == [embedding("also good")]
            (frame,) = await asker.answer(requests[1])
            assert (frame.kind, frame.status) == (wire.Kind.WHOLE, 400)
            await _empty(asker)

    asyncio.run(failed())


def test_only_as_much_is_taken_as_the_box_has_room_for(server: NatsServer, tmp_path: Path) -> None:
    async def taken() -> None:
        one = engine(tmp_path, "m", pinned=True, task="generate", concurrency=2)
        async with asking(server.access) as asker, working(config(server.access, one)) as worker:
            sent = [await asker.send("m", f"slow 400 {n}", path="/v1/completions") for n in range(8)]
            await asyncio.sleep(0.2)
            assert len(worker.intake.held) <= 4  # two at work, and what follows them
            for request in sent:
                await asker.json(request)
            assert (await seen(one.unit))["most"] == 2

    asyncio.run(taken())


def test_two_engines_of_a_box_share_what_it_took(server: NatsServer, tmp_path: Path) -> None:
    async def shared() -> None:
        engines = [engine(tmp_path, "m", number, pinned=True, task="generate", concurrency=1) for number in (1, 2)]
        async with asking(server.access) as asker, working(config(server.access, *engines)) as worker:
            assert {one.name for one in worker.desks["m"].engines} == {f"m@{one.unit}" for one in engines}
            for request in [await asker.send("m", f"slow 100 {n}", path="/v1/completions") for n in range(6)]:
                await asker.json(request)
            assert [(await seen(one.unit))["calls"] for one in engines] == [3, 3]
            assert worker.intake.counts["returned"] == 0

    asyncio.run(shared())


def test_a_stream_is_acknowledged_before_it_begins_and_shows_life(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "ALIVE_EVERY", 0.2)

    async def streamed() -> None:
        one = engine(tmp_path, "m", pinned=True, task="generate")
        async with asking(server.access) as asker, working(config(server.access, one)):
            request = await asker.send("m", "one pause three", path="/v1/completions", stream=True)
            await until(lambda: asker.frames.get(request))
            assert await asker.waiting() == 0
            frames = await asker.answer(request)
            assert (frames[0].kind, frames[0].content_type) == (wire.Kind.BEGIN, "text/event-stream")
            assert wire.Kind.ALIVE in {frame.kind for frame in frames}
            assert (
                b"".join(frame.body for frame in frames).split()
                == b"data: one data: pause data: three data: [DONE]".split()
            )

    asyncio.run(streamed())


def test_a_long_answer_comes_in_several_frames(server: NatsServer, tmp_path: Path) -> None:
    async def long() -> None:
        one = engine(tmp_path, "m", pinned=True, task="generate")
        async with asking(server.access) as asker, working(config(server.access, one)):
            request = await asker.send("m", "x", path="/v1/completions", extra={"long": 2_500_000})
            frames = await asker.answer(request)
            assert [frame.kind for frame in frames] == [wire.Kind.BEGIN, wire.Kind.MORE, wire.Kind.END]
            assert len(json.loads(b"".join(frame.body for frame in frames))["long"]) == 2_500_000

    asyncio.run(long())


def test_a_long_body_is_fetched_from_the_store_and_removed(server: NatsServer, tmp_path: Path) -> None:
    async def fetched() -> None:
        one = engine(tmp_path, "m", pinned=True, task="generate")
        async with asking(server.access) as asker, working(config(server.access, one)):
            bucket = await nats.make_bucket(asker.js)
            await bucket.put("b1", json.dumps({"prompt": "x" * 3_000_000}).encode())
            request = await asker.send("m", "", path="/v1/completions", body="b1")
            assert (await asker.json(request))["choices"] == [{"text": "3000000 characters"}]
            await _until_async(lambda: _stored(asker), 0)
            gone = await asker.send("m", "", path="/v1/completions", body="never there")
            (frame,) = await asker.answer(gone)
            assert (frame.kind, frame.status) == (wire.Kind.FAILED, 502)

    asyncio.run(fetched())


def test_messagepack_in_and_out(server: NatsServer, tmp_path: Path) -> None:
    async def packed() -> None:
        async with asking(server.access) as asker, working(config(server.access, engine(tmp_path, "m", pinned=True))):
            kind = "application/msgpack"
            raw = msgpack.packb({"model": "m", "input": "hello"})
            request = await asker.send("m", "", raw=raw, content_type=kind, accept=kind)
            (frame,) = await asker.answer(request)
            assert frame.content_type == kind
            vector = msgpack.unpackb(frame.body)["data"][0]["embedding"]
            assert list(struct.unpack("<2f", vector)) == embedding("hello")
            (frame,) = await asker.answer(await asker.send("m", "", raw=b"\xc1", content_type=kind, accept=kind))
            assert frame.status == 400
            assert "no MessagePack" in msgpack.unpackb(frame.body)["error"]["message"]

    asyncio.run(packed())


def test_what_is_late_is_dropped_before_any_work(server: NatsServer, tmp_path: Path) -> None:
    async def late() -> None:
        one = engine(tmp_path, "m", pinned=True)
        async with asking(server.access) as asker, working(config(server.access, one)):
            (frame,) = await asker.answer(await asker.send("m", "x", deadline=-1.0))
            assert (frame.kind, frame.status) == (wire.Kind.FAILED, 504)
            assert (await seen(one.unit))["calls"] == 0
            (frame,) = await asker.answer(await asker.send("m", "slow 5000", deadline=0.3))
            assert frame.status == 504
            await _empty(asker)

    asyncio.run(late())


def test_a_client_that_goes_takes_its_work_with_it(server: NatsServer, tmp_path: Path) -> None:
    async def cancelled() -> None:
        one = engine(tmp_path, "m", pinned=True, task="generate", concurrency=1)
        async with asking(server.access) as asker, working(config(server.access, one)) as worker:
            words = " ".join(f"w{n}" for n in range(200))
            stream = await asker.send("m", words, path="/v1/completions", stream=True)
            await until(lambda: asker.frames.get(stream))
            waits = await asker.send("m", "never", path="/v1/completions")
            for request in (waits, stream, "not known"):
                await asker.client.publish(wire.cancel_subject(request))
            await until(lambda: not worker.intake.held)
            await _until_async(lambda: _cut(one.unit), 1)
            assert not asker.frames.get(waits)
            await _empty(asker)
            kept = [worker.intake.answers.get(wire.token(request)) for request in (waits, stream)]
            assert kept == [None, None], "nobody waits for what there is of them"
            assert await asker.json(await asker.send("m", "next", path="/v1/completions"))
            await asker.client.publish(wire.cancel_subject("early"))
            await asker.client.flush()
            await asker.send("m", "x", path="/v1/completions", id="early")
            await _empty(asker)
            assert not asker.frames.get("early")

    asyncio.run(cancelled())


def test_a_gateway_that_asks_gets_the_answer_while_it_is_made_and_after(server: NatsServer, tmp_path: Path) -> None:
    async def asked() -> None:
        async with asking(server.access) as asker, working(config(server.access, engine(tmp_path, "m", pinned=True))):
            request = await asker.send("m", "slow 300")
            other = wire.answer_subject("g", "other")
            await asyncio.sleep(0.1)
            await asker.client.publish(wire.ask_subject(request), other.encode())
            frames = await asker.answer("other")
            assert [frame.kind for frame in frames] == [wire.Kind.ALIVE, wire.Kind.WHOLE]
            third = wire.answer_subject("g", "third")
            await asker.client.publish(wire.ask_subject(request), third.encode())
            assert [frame.kind for frame in await asker.answer("third")] == [wire.Kind.WHOLE]
            assert len(asker.frames[request]) == 1

    asyncio.run(asked())


def test_the_worker_answers_for_itself_and_directly(server: NatsServer, tmp_path: Path) -> None:
    async def direct() -> None:
        settings = config(server.access, engine(tmp_path, "m", pinned=True), engine(tmp_path, "other"))
        async with asking(server.access) as asker, working(settings):
            http = Http(f"http://127.0.0.1:{settings.listen.port}")
            assert (await http.whole("GET", "/health")).status == 200
            call = await http.whole("POST", "/v1/embeddings", b'{"model":"m","input":"hello"}')
            assert json.loads(call.body)["data"][0]["embedding"] == embedding("hello")
            assert (await http.whole("POST", "/v1/embeddings", b'{"model":"other","input":"x"}')).status == 503
            assert (await http.whole("POST", "/v1/embeddings", b'{"model":"none","input":"x"}')).status == 404
            stream = await http.whole("POST", "/v1/completions", b'{"model":"m","prompt":"a b","stream":true}')
            assert stream.body.split() == b"data: a data: b data: [DONE]".split()
            state = json.loads((await http.whole("GET", "/state")).body)
            assert state["models"]["m"]["engines"][0]["phase"] == "loaded"
            assert json.loads((await asker.client.request(wire.STATE)).data).keys() == state.keys() - {"queue"}
            metrics = (await http.whole("GET", "/metrics")).body.decode()
            assert 'fleetctl_worker_engine_loaded{model="m",engine="m"} 1' in metrics
            http.close()

    asyncio.run(direct())


async def _empty(asker: Asker) -> None:
    await _until_async(asker.waiting, 0)


async def _cut(unit: str) -> int:
    return (await seen(unit))["cut"]


async def _stored(asker: Asker) -> int:
    return (await asker.js.stream_info(f"OBJ_{wire.BODIES}")).state.messages


async def _until_async(ask: object, wanted: int) -> None:
    for _ in range(500):
        if await ask() == wanted:  # type: ignore[operator]
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come about")
