"""More models than memory: loaded when their requests come, evicted for others, while the rest goes on."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from pathlib import Path

import pytest
from natsserver import NatsServer, needs_nats
from poolworker import ProcessUnits, asking, config, engine, phases, until, working
from standin_engine import embedding

from fleetctl.pool import residency
from fleetctl.pool.client import Client as Http
from fleetctl.pool.worker import loading, pull
from fleetctl.pool.worker.demand import Waiting
from fleetctl.pool.worker.state import state
from fleetctl.pool.worker.worker import Worker

pytestmark = needs_nats


def hurry(worker: Worker) -> None:
    """Let models go as soon as they are idle."""
    worker.loading.rules = dataclasses.replace(residency.RULES, stay=0.0, stay_loads=0.0, recent=0.1, retry_first=0.5)


def test_a_model_is_loaded_for_its_first_request_and_another_goes_for_it(
    server: NatsServer, units: ProcessUnits, tmp_path: Path
) -> None:
    async def loaded() -> None:
        models = [engine(tmp_path, name, memory=40, pinned=name == "stays") for name in ("stays", "a", "b")]
        async with asking(server.access) as asker, working(config(server.access, *models, memory=80), units) as worker:
            hurry(worker)
            assert await asker.embedding(await asker.send("a", "for a")) == [embedding("for a")]
            assert phases(worker) == {"stays": "loaded", "a": "loaded", "b": "absent"}
            b = await asker.send("b", "for b")
            others = [await asker.send("stays", f"text {n}") for n in range(5)]
            for request in others:
                await asker.answer(request)
            assert not asker.frames.get(b)  # it waits for its model, and others do not wait for it
            assert await asker.embedding(b) == [embedding("for b")]
            assert phases(worker) == {"stays": "loaded", "a": "absent", "b": "loaded"}
            assert worker.intake.counts["returned"] == 0

    asyncio.run(loaded())


def test_an_engine_that_cannot_be_started_is_tried_again_and_says_why(
    server: NatsServer, units: ProcessUnits, tmp_path: Path
) -> None:
    async def failed() -> None:
        one = engine(tmp_path, "m")
        units.broken = (one.unit,)
        settings = config(server.access, one)
        async with asking(server.access) as asker, working(settings, units) as worker:
            hurry(worker)
            request = await asker.send("m", "hello")
            await until(lambda: worker.desks["m"].engines[0].failures == 2)
            http = Http(f"http://127.0.0.1:{settings.listen.port}")
            state = json.loads((await http.whole("GET", "/state")).body)
            assert "is broken" in state["models"]["m"]["engines"][0]["reason"]
            assert state["models"]["m"]["waiting"] == 1
            units.broken = ()
            assert (await http.whole("POST", "/models/m/load")).status == 202
            assert await asker.embedding(request) == [embedding("hello")]
            http.close()

    asyncio.run(failed())


def test_what_operators_wish_is_done(server: NatsServer, units: ProcessUnits, tmp_path: Path) -> None:
    async def wished() -> None:
        settings = config(server.access, engine(tmp_path, "m"), engine(tmp_path, "big", memory=1000))
        async with asking(server.access), working(settings, units) as worker:
            http = Http(f"http://127.0.0.1:{settings.listen.port}")

            async def ask(what: str) -> tuple[int, str]:
                whole = await http.whole("POST", f"/models/{what}")
                return whole.status, whole.body.decode()

            assert (await ask("m/load"))[0] == 202
            await until(lambda: phases(worker)["m"] == "loaded")
            assert (await ask("m/pin"))[0] == 202
            status, told = await ask("m/evict")
            assert (status, "pinned on this box" in told) == (409, True)
            assert (await ask("m/unpin"))[0] == 202
            assert (await ask("m/evict"))[0] == 202
            await until(lambda: phases(worker)["m"] == "absent")
            status, told = await ask("none/load")
            assert (status, "it has big, m" in told) == (404, True)
            status, told = await ask("big/load")
            assert (status, "does not fit" in told) == (409, True)
            assert (await ask("m/burn"))[0] == 404
            http.close()

    asyncio.run(wished())


def test_with_a_control_socket_the_port_only_tells(server: NatsServer, units: ProcessUnits, tmp_path: Path) -> None:
    async def told() -> None:
        path = tmp_path / "control.sock"
        settings = config(server.access, engine(tmp_path, "m", pinned=True), control=str(path))
        question = json.dumps({"model": "m", "input": "hello"}).encode()
        async with asking(server.access), working(settings, units):
            port, control = Http(f"http://127.0.0.1:{settings.listen.port}"), Http(f"unix:{path}")
            for http in (port, control):
                seen = [(await http.whole("GET", what)).status for what in ("/health", "/metrics", "/state")]
                assert seen == [200] * 3
            for asked in ("/models/m/unpin", "/models/m/evict", "/v1/embeddings"):
                refused = await port.whole("POST", asked, question)
                assert (refused.status, str(path) in refused.body.decode()) == (403, True)
            answer = await control.whole("POST", "/v1/embeddings", question)
            assert json.loads(answer.body)["data"][0]["embedding"] == embedding("hello")
            assert (await control.whole("POST", "/models/m/unpin")).status == 202
            port.close()
            control.close()

    asyncio.run(told())


def test_a_worker_that_is_started_again_finds_what_runs(
    server: NatsServer, units: ProcessUnits, tmp_path: Path
) -> None:
    async def found() -> None:
        one = engine(tmp_path, "m")
        await units.start(one.unit)
        async with asking(server.access), working(config(server.access, one), units) as worker:
            await until(lambda: phases(worker)["m"] == "loaded")
        assert units.starts == [one.unit]

    asyncio.run(found())


def test_a_model_that_another_box_has_is_loaded_only_when_its_requests_wait_nonetheless(
    server: NatsServer, units: ProcessUnits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def shared() -> None:
        kept = [engine(tmp_path, "m", number, task="generate", concurrency=1) for number in (1, 2)]
        async with (
            asking(server.access) as asker,
            working(config(server.access, kept[0], box="first"), units) as first,
            working(config(server.access, kept[1], box="second"), units) as second,
        ):
            for worker in (first, second):
                worker.loading.rules = dataclasses.replace(residency.RULES, start_seconds=0.1)
            await asker.answer(await asker.send("m", "slow 300", path="/v1/completions"))
            assert sorted([phases(first)["m"], phases(second)["m"]]) == ["absent", "loaded"]
            monkeypatch.setattr(loading, "PATIENCE", 0.5)
            work = [await asker.send("m", f"slow 700 {n}", path="/v1/completions") for n in range(6)]
            await until(lambda: [phases(first)["m"], phases(second)["m"]] == ["loaded", "loaded"])
            for request in work:
                await asker.answer(request)

    asyncio.run(shared())


def test_an_engine_that_somebody_stops_is_not_started_again_at_once(
    server: NatsServer, units: ProcessUnits, tmp_path: Path
) -> None:
    async def stopped() -> None:
        one = engine(tmp_path, "m", pinned=True)
        async with asking(server.access) as asker, working(config(server.access, one), units) as worker:
            hurry(worker)
            units.kill(one.unit)
            request = await asker.send("m", "hello")
            await until(lambda: phases(worker)["m"] == "failed")
            assert "not started again" in worker.desks["m"].engines[0].reason
            assert await asker.embedding(request) == [embedding("hello")]
            assert units.starts == [one.unit, one.unit]

    asyncio.run(stopped())


def test_a_load_that_does_not_come_about_can_be_left(server: NatsServer, units: ProcessUnits, tmp_path: Path) -> None:
    async def left() -> None:
        one = engine(tmp_path, "m")
        units.broken = (one.unit,)
        settings = config(server.access, one)
        async with working(settings, units) as worker:
            http = Http(f"http://127.0.0.1:{settings.listen.port}")
            assert (await http.whole("POST", "/models/m/load")).status == 202
            await until(lambda: worker.desks["m"].engines[0].failures == 1)
            assert worker.desks["m"].engines[0].wish == "load"
            assert (await http.whole("POST", "/models/m/leave")).status == 202
            assert worker.desks["m"].engines[0].wish is None
            assert (await http.whole("POST", "/models/none/leave")).status == 404
            http.close()

    asyncio.run(left())


def test_what_the_guard_says_is_kept_to_and_its_silence_limits_nothing(
    server: NatsServer, units: ProcessUnits, tmp_path: Path
) -> None:
    status = tmp_path / "status.json"

    def guard(age: float = 0.0, **more: object) -> None:
        pool = {"hold": "", "memory": None, "reach": "", "out": {}, **more}
        status.write_text(json.dumps({"at": time.time() - age, "pool": pool}))

    async def guarded() -> None:
        models = [engine(tmp_path, name, memory=40, pinned=name == "stays") for name in ("stays", "a")]
        async with asking(server.access) as asker, working(config(server.access, *models, memory=80), units) as worker:
            hurry(worker)
            worker.loading.guard = status
            await until(lambda: phases(worker)["stays"] == "loaded")
            guard(hold="memory is short")
            request = await asker.send("a", "waits")
            await asyncio.sleep(1.2)
            assert phases(worker) == {"stays": "loaded", "a": "absent"} and not asker.frames.get(request)
            assert state(worker)["memory"]["guard"] == "memory is short"
            guard(memory=40)
            await asyncio.sleep(0.6)
            assert phases(worker)["a"] == "absent"
            guard(age=11.0, hold="memory is short")
            assert await asker.embedding(request) == [embedding("waits")]
            guard(memory=40, reach="idle", hold="memory is short")
            await until(lambda: phases(worker) == {"stays": "loaded", "a": "absent"})
            guard(out={models[1].unit: "it hung 4 times within an hour"})
            with pytest.raises(loading.RefusedLoadError, match=r"the guard keeps a out .* it hung 4 times"):
                worker.loading.wish("a", "load")
            status.write_text("{")
            worker.loading.wish("a", "load")
            await until(lambda: phases(worker)["a"] == "loaded")

    asyncio.run(guarded())


def test_what_a_pull_brings_after_its_model_has_gone_waits_and_is_seen(
    server: NatsServer, units: ProcessUnits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "STANDS", 10.0)

    async def seen() -> None:
        one = engine(tmp_path, "a", memory=40)
        async with asking(server.access) as asker, working(config(server.access, one, memory=80), units) as worker:
            hurry(worker)
            await asker.embedding(await asker.send("a", "one"))
            worker.loading.wish("a", "evict")
            await until(lambda: phases(worker)["a"] == "absent")
            request = await asker.send("a", "two")
            await until(lambda: worker.intake.counts["returned"] >= 1)
            await until(lambda: worker.queued("a", "work") == 1)
            worker.desks["a"].engines[0].wish = None  # as if it had gone for another
            assert await asker.embedding(request) == [embedding("two")]

    asyncio.run(seen())


def test_of_what_was_given_back_that_counts_which_nobody_has_taken() -> None:
    waiting = Waiting()
    waiting.came_back(7)
    waiting.came_back(8)
    assert waiting.still_out(8, 2) == 2 and waiting.still_out(8, 5) == 2
    assert waiting.still_out(9, 2) == 1, "one was delivered since"
    assert waiting.still_out(9, 0) == 0, "and nothing is out"
    waiting.came_back(10)
    assert waiting.still_out(12, 3) == 0
