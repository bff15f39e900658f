"""What breaks in a pool, with real parts: no request that was accepted is lost, and no client is answered twice."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from natsserver import NatsServer, needs_nats
from poolworker import (
    Asker,
    ProcessUnits,
    WorkerProcess,
    asking,
    config,
    engine,
    seen,
    until,
    working,
)
from standin_engine import embedding

from fleetctl.pool import wire

pytestmark = needs_nats


@pytest.fixture
def units() -> Iterator[ProcessUnits]:
    units = ProcessUnits(restart=True)
    yield units
    units.end()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs of work five times as often, so that a test need not wait for ten seconds."""
    monkeypatch.setattr(wire, "ACK_WAIT", 2.0)
    monkeypatch.setattr(wire, "AT_WORK_EVERY", 0.6)


async def answered_once(asker: Asker, requests: list[str]) -> None:
    """Every request has one answer, and nothing is left in the queue."""
    for request in requests:
        await asker.answer(request, 30.0)
    for _ in range(500):
        if not await asker.waiting():
            break
        await asyncio.sleep(0.02)
    assert await asker.waiting() == 0
    assert asker.others == []
    assert {asker.frames[request][-1].status for request in requests} == {200}


def test_a_worker_that_is_killed_loses_nothing(
    server: NatsServer, units: ProcessUnits, tmp_path: Path, quick: None
) -> None:
    async def killed() -> None:
        one = engine(tmp_path, "m", task="generate", concurrency=4, pinned=True)
        await units.start(one.unit)
        async with asking(server.access) as asker:
            first = WorkerProcess(tmp_path, config(server.access, one, box="first"), "first")
            first.start()
            requests = [await asker.send("m", f"slow 300 {n}", path="/v1/completions") for n in range(12)]
            await until(lambda: asker.frames)
            await asyncio.sleep(0.1)
            first.stop(signal.SIGKILL)
            answered = len(asker.frames)
            assert answered < len(requests)
            async with working(config(server.access, one, box="second"), units):
                await answered_once(asker, requests)
            assert {asker.frames[request][0].worker for request in requests} == {"first", "second"}

    asyncio.run(killed())


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_nats_is_restarted_with_work_queued_and_running(
    server: NatsServer, units: ProcessUnits, tmp_path: Path, quick: None, how: int
) -> None:
    async def restarted() -> None:
        one = engine(tmp_path, "m", task="generate", concurrency=2, pinned=True)
        async with asking(server.access) as asker, working(config(server.access, one), units):
            requests = [await asker.send("m", f"slow 500 {n}", path="/v1/completions") for n in range(8)]
            await asyncio.sleep(0.2)
            server.stop(how)
            await asyncio.sleep(1.0)
            server.start()
            await until(lambda: asker.client.is_connected)
            # Core NATS keeps nothing, so a gateway asks for what it may have missed while the server was away.
            await asyncio.sleep(0.5)
            for request in requests:
                if not asker.frames.get(request):
                    await asker.client.publish(wire.ask_subject(request), wire.answer_subject("g", request).encode())
            await answered_once(asker, requests)
            assert (await seen(one.unit))["calls"] == len(requests)

    asyncio.run(restarted())


def test_an_engine_is_killed_and_comes_back(server: NatsServer, units: ProcessUnits, tmp_path: Path) -> None:
    async def killed() -> None:
        one = engine(tmp_path, "m", pinned=True)
        async with asking(server.access) as asker, working(config(server.access, one), units) as worker:
            requests = [await asker.send("m", f"slow 300 {n}") for n in range(10)]
            await asyncio.sleep(0.15)
            units.kill(one.unit)
            await answered_once(asker, requests)
            for n, request in enumerate(requests):
                assert await asker.embedding(request) == [embedding(f"slow 300 {n}")]
            assert worker.desks["m"].engines[0].deaths == 1

    asyncio.run(killed())


def test_the_other_engine_of_the_box_takes_over(server: NatsServer, units: ProcessUnits, tmp_path: Path) -> None:
    async def killed() -> None:
        engines = [engine(tmp_path, "m", number, pinned=True, task="generate", concurrency=2) for number in (1, 2)]
        async with asking(server.access) as asker, working(config(server.access, *engines), units) as worker:
            requests = [await asker.send("m", f"slow 300 {n}", path="/v1/completions") for n in range(8)]
            await asyncio.sleep(0.15)
            units.kill(engines[0].unit)
            await answered_once(asker, requests)
            assert worker.intake.counts["returned"] == 0

    asyncio.run(killed())


def test_a_poisonous_request_is_found_and_the_others_live(
    server: NatsServer, units: ProcessUnits, tmp_path: Path
) -> None:
    async def poisoned() -> None:
        one = engine(tmp_path, "m", task="generate", concurrency=4, pinned=True)
        async with asking(server.access) as asker, working(config(server.access, one), units):
            poison = await asker.send("m", "poison", path="/v1/completions")
            others = [await asker.send("m", f"slow 20 {n}", path="/v1/completions") for n in range(6)]
            (frame,) = await asker.answer(poison, 30.0)
            assert (frame.kind, frame.status) == (wire.Kind.FAILED, 502)
            assert b"3 engines died" in frame.body
            await answered_once(asker, others)
            dead = await asker.js.get_last_msg(wire.DEAD, wire.dead_subject("m"))
            assert dead.headers and "engines died" in dead.headers["Fleetctl-Reason"]
            assert wire.unpack(dead.data or b"")[0].id == poison

    asyncio.run(poisoned())


def test_a_stream_that_has_begun_is_not_repeated(server: NatsServer, units: ProcessUnits, tmp_path: Path) -> None:
    async def broken() -> None:
        one = engine(tmp_path, "m", task="generate", pinned=True)
        async with asking(server.access) as asker, working(config(server.access, one), units):
            request = await asker.send("m", "one two die three", path="/v1/completions", stream=True)
            frames = await asker.answer(request)
            assert (frames[0].kind, frames[-1].kind, frames[-1].status) == (wire.Kind.BEGIN, wire.Kind.FAILED, 502)
            assert await asker.waiting() == 0
            await asker.answer(await asker.send("m", "next", path="/v1/completions"))
            assert len(asker.frames[request]) == len(frames)

    asyncio.run(broken())


def test_a_drained_worker_finishes_what_runs_and_gives_back_the_rest(
    server: NatsServer, units: ProcessUnits, tmp_path: Path
) -> None:
    async def drained() -> None:
        one = engine(tmp_path, "m", task="generate", concurrency=2, pinned=True)
        await units.start(one.unit)
        async with asking(server.access) as asker:
            first = WorkerProcess(tmp_path, config(server.access, one, box="first"), "first")
            first.start()
            requests = [await asker.send("m", f"slow 400 {n}", path="/v1/completions") for n in range(8)]
            await until(lambda: asker.frames)
            await asyncio.sleep(0.1)
            assert await asyncio.to_thread(first.stop, signal.SIGTERM) == 0
            done = len(asker.frames)
            async with working(config(server.access, one, box="second"), units):
                await answered_once(asker, requests)
            assert done >= 4  # what had ended, and what was at work
            assert (await seen(one.unit))["calls"] == len(requests)

    asyncio.run(drained())


def test_a_redelivered_request_that_another_worker_has_is_left_to_it(
    server: NatsServer, units: ProcessUnits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first worker gives no signs of work (as one whose connection hung would), and answers nonetheless."""
    monkeypatch.setattr(wire, "ACK_WAIT", 0.5)
    monkeypatch.setattr(wire, "AT_WORK_EVERY", 100.0)

    async def left() -> None:
        engines = [engine(tmp_path, "m", number, task="generate", pinned=True) for number in (1, 2)]
        async with asking(server.access) as asker, _two(server, engines, units):
            request = await asker.send("m", "slow 1500", path="/v1/completions")
            await answered_once(asker, [request])
            assert sum([(await seen(one.unit))["calls"] for one in engines]) == 1

    asyncio.run(left())


@asynccontextmanager
async def _two(server: NatsServer, engines: list[wire.PoolEngine], units: ProcessUnits) -> AsyncIterator[None]:
    async with (
        working(config(server.access, engines[0], box="first"), units),
        working(config(server.access, engines[1], box="second"), units),
    ):
        yield


def test_lines_of_batch_jobs_wait_for_those_whom_somebody_waits_for(
    server: NatsServer, units: ProcessUnits, tmp_path: Path
) -> None:
    async def batched() -> None:
        one = engine(tmp_path, "m", task="generate", concurrency=2, pinned=True)
        async with asking(server.access) as asker:
            await _lines(asker, 6)
            work = [await asker.send("m", f"slow 100 {n}", path="/v1/completions") for n in range(4)]
            async with working(config(server.access, one), units) as worker:
                await answered_once(asker, work)
                assert await _results(asker) <= 2
                for _ in range(500):
                    if await _results(asker) == 6:
                        break
                    await asyncio.sleep(0.02)
                assert await _results(asker) == 6
                await until(lambda: not worker.intake.held)
            assert (await asker.js.stream_info(wire.BATCH)).state.messages == 0
            assert (await seen(one.unit))["calls"] == 10
            stored = await asker.js.get_last_msg(wire.RESULTS, wire.result_subject("job", 3))
            frame = wire.unpack_frame(stored.data or b"")
            assert (frame.status, frame.worker) == (200, "box1")
            assert b"slow 100 line 3" in frame.body

    asyncio.run(batched())


async def _lines(asker: Asker, count: int) -> None:
    for line in range(count):
        body = b'{"model":"m","prompt":"slow 100 line %d"}' % line
        envelope = wire.Envelope(f"job.{line}", "m", "/v1/completions", wire.result_subject("job", line), 0, len(body))
        await asker.js.publish(wire.batch_subject("m", "job", line), envelope.pack(body))


async def _results(asker: Asker) -> int:
    return (await asker.js.stream_info(wire.RESULTS)).state.messages
