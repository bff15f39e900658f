"""Residency as a worker carries it out: wishes that outlast it, and boxes that leave a model to each other."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest
from natsserver import NatsServer, needs_nats
from poolworker import ProcessUnits, asking, config, engine, phases, until, working
from standin_engine import embedding

from fleetctl.onbox import pool as onbox
from fleetctl.onbox.main import Call, OpError
from fleetctl.pool import residency, wire
from fleetctl.pool.client import Client as Http
from fleetctl.pool.wishes import Wished, read
from fleetctl.run.pool import PoolWorker

pytestmark = needs_nats


def test_wishes_outlast_the_worker_until_they_are_met(server: NatsServer, units: ProcessUnits, tmp_path: Path) -> None:
    kept = tmp_path / "kept" / "wishes.json"
    settings = config(server.access, *(engine(tmp_path, name, memory=40) for name in ("a", "b", "c")), memory=100)

    async def ask(*wishes: str) -> list[int]:
        http = Http(f"http://127.0.0.1:{settings.listen.port}")
        told = [(await http.whole("POST", f"/models/{wish}")).status for wish in wishes]
        http.close()
        return told

    async def wished() -> None:
        async with asking(server.access) as asker, working(settings, units) as worker:
            worker.loading.keep_wishes(kept)
            assert await ask("a/pin", "b/load") == [202, 202]
            await until(lambda: phases(worker) == {"a": "loaded", "b": "loaded", "c": "absent"})
            assert read(kept) == {"a": Wished(pinned=True)}  # b is loaded: its wish is met
            assert await ask("b/pin", "c/pin", "b/evict") == [202, 409, 409]
            assert await ask("b/unpin", "b/evict") == [202, 202]
            await until(lambda: phases(worker)["b"] == "absent")
        await units.stop(settings.engines[0].unit, 5)
        async with asking(server.access) as asker, working(settings, units) as worker:
            worker.loading.keep_wishes(kept)
            await until(lambda: phases(worker)["a"] == "loaded")  # it is pinned, as it was
            out, there = await asker.send("b", "waits"), await asker.send("c", "hello")
            assert await asker.embedding(there) == [embedding("hello")]
            assert (phases(worker)["b"], out in asker.frames) == ("absent", False)
            assert await ask("b/load") == [202]
            assert await asker.embedding(out) == [embedding("waits")]
            assert read(kept) == {"a": Wished(pinned=True)}

    asyncio.run(wished())


def test_the_program_on_a_box_reads_what_the_worker_says_and_tells_it_what_is_wished(
    server: NatsServer, units: ProcessUnits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(
        server.access,
        engine(tmp_path, "a", pinned=True, memory=30),
        engine(tmp_path, "org/b", memory=30),
        control=str(tmp_path / "control.sock"),
    )
    file = tmp_path / "worker.json"
    file.write_text(json.dumps(wire.as_json(settings)))
    monkeypatch.setattr(onbox, "CONFIG", str(file))
    call = Call(1, lambda message: None)

    async def told() -> None:
        async with asking(server.access), working(settings, units):
            seen = PoolWorker.model_validate((await asyncio.to_thread(onbox.pool_state, call))["state"])
            assert (seen.box, seen.connected, seen.memory.taken, seen.memory.limit) == ("box1", True, 30, 100)
            assert (seen.models["a"].engines[0].phase, seen.models["a"].engines[0].pinned) == ("loaded", True)
            assert seen.queue is not None and seen.queue.models["a"].waiting == 0
            answer = await asyncio.to_thread(onbox.pool_wish, call, "org/b", "pin")
            assert answer["org/b"]["pinned"] is True
            with pytest.raises(OpError, match="is pinned on this box"):
                await asyncio.to_thread(onbox.pool_wish, call, "org/b", "evict")
            with pytest.raises(OpError, match="this box has no model 'c'"):
                await asyncio.to_thread(onbox.pool_wish, call, "c", "load")
        assert "does not answer" in onbox.pool_state(call)["why"]

    asyncio.run(told())


def test_nothing_goes_for_a_model_that_another_box_has(server: NatsServer, units: ProcessUnits, tmp_path: Path) -> None:
    async def left() -> None:
        there = engine(tmp_path, "m", 1, task="generate", concurrency=1, pinned=True)
        here = engine(tmp_path, "m", 2, task="generate", concurrency=1)
        other = engine(tmp_path, "a")
        async with (
            asking(server.access) as asker,
            working(config(server.access, there, box="first"), units),
            working(config(server.access, here, other, box="second", memory=15), units) as second,
        ):
            second.loading.rules = dataclasses.replace(residency.RULES, stay=0.0, stay_loads=0.0)
            await asker.embedding(await asker.send("a", "hello"))
            work = [await asker.send("m", f"slow 500 {number}", path="/v1/completions") for number in range(4)]
            for request in work:
                await asker.answer(request)
            assert phases(second) == {"m": "absent", "a": "loaded"}
            assert units.starts.count(other.unit) == 1

    asyncio.run(left())
