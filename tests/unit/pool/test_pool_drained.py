"""A box of a pool that is drained and comes back, engines started anew, and what the worker says of the queue."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from natsserver import NatsServer, needs_nats
from poolworker import ProcessUnits, asking, config, engine, phases, seen, until, working

from fleetctl.onbox import kept
from fleetctl.onbox import pool as onbox
from fleetctl.onbox.main import Call, OpError
from fleetctl.onbox.poolwatch import PoolPages
from fleetctl.pool import wire
from fleetctl.pool.client import Client as Http
from fleetctl.pool.worker import drained
from fleetctl.pool.worker.worker import Worker

pytestmark = needs_nats


def test_the_note_is_the_one_that_fleetctl_writes() -> None:
    assert str(drained.NOTE) == kept.DRAINED


async def asked(worker: Worker, method: str, path: str) -> tuple[int, Any]:
    """What the worker's own interface answers."""
    http = Http(f"http://127.0.0.1:{worker.config.listen.port}")
    try:
        answer = await http.whole(method, path)
        return answer.status, json.loads(answer.body)
    finally:
        http.close()


def test_a_drained_box_finishes_takes_nothing_and_comes_back_with_what_waited(
    server: NatsServer, tmp_path: Path, units: ProcessUnits
) -> None:
    async def story() -> None:
        note = tmp_path / "drained.json"
        access = wire.NatsAccess((server.url,))
        settings = config(access, engine(tmp_path, "m", pinned=True), engine(tmp_path, "n"))
        async with asking(access) as asker, working(settings, units) as worker:
            worker.drained_note = note
            running = await asker.send("m", "slow 500")
            await until(lambda: worker.desks["m"].engines[0].running)
            note.write_text("{}")
            await until(lambda: worker.drained)
            assert (await asked(worker, "GET", "/health"))[1] == {"status": "draining"}
            await asker.embedding(running)
            await until(lambda: not worker.held)
            waits, other = await asker.send("m", "later"), await asker.send("n", "later")
            await asyncio.sleep(0.3)
            assert not asker.frames.get(waits) and await asker.waiting() == 2
            assert phases(worker) == {"m": "loaded", "n": "absent"}
            told = (await asked(worker, "GET", "/state"))[1]
            assert told["drained"] and told["queue"]["models"]["m"]["waiting"] == 1
            note.unlink()
            await asker.embedding(waits)
            await asker.embedding(other)

    asyncio.run(story())


def test_an_engine_is_started_anew_after_its_last_request_and_none_fails(
    server: NatsServer, tmp_path: Path, units: ProcessUnits
) -> None:
    async def story() -> None:
        access = wire.NatsAccess((server.url,))
        one = engine(tmp_path, "m", pinned=True)
        async with asking(access) as asker, working(config(access, one), units) as worker:
            sent = [await asker.send("m", f"text {number}") for number in range(20)]
            status, told = await asked(worker, "POST", "/models/m/restart")
            assert (status, told["m"]["pinned"]) == (202, True)
            await until(lambda: phases(worker) == {"m": "loading"})
            assert (await asked(worker, "POST", "/models/m/restart"))[0] == 409
            sent += [await asker.send("m", f"more {number}") for number in range(20)]
            for identity in sent:
                await asker.embedding(identity)
            assert len(units.starts) == 2 and (await seen(one.unit))["calls"] >= 1
            assert (await asked(worker, "POST", "/models/other/restart"))[0] == 404
            told = (await asked(worker, "GET", "/state"))[1]["models"]["m"]["engines"][0]
            assert told["requests"] == 40 and told["tokens"] > 0

    asyncio.run(story())


def test_the_queue_is_told_as_jetstream_has_it(server: NatsServer, tmp_path: Path, units: ProcessUnits) -> None:
    async def story() -> None:
        access = wire.NatsAccess((server.url,))
        async with asking(access) as asker, working(config(access, engine(tmp_path, "m")), units) as worker:
            worker.drain(True)
            for _ in range(3):
                await asker.send("m", "hello")
            await asker.js.publish(wire.dead_subject("m"), b"given up")
            await asyncio.sleep(0.2)
            listen = worker.config.listen
            service = {"kind": "worker", "address": listen.host, "port": listen.port}
            read = PoolPages([service], time.monotonic() + 5)
            page = (await asyncio.to_thread(read.told))["worker"]
            queue = page["state"]["queue"]
            assert queue["limit"] == 1000
            one = queue["models"]["m"]
            assert one.pop("oldest") >= 0.1
            assert one == {"waiting": 3, "at_work": 0, "stored": 3, "redelivered": 0, "batch": 0, "dead": 1}

    asyncio.run(story())


def test_what_fleetctl_asks_of_a_worker_is_over_when_it_is_done(
    server: NatsServer, tmp_path: Path, units: ProcessUnits, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        access = wire.NatsAccess((server.url,))
        one = engine(tmp_path, "m", pinned=True)
        settings = config(access, one)
        file = tmp_path / "worker.json"
        file.write_text(json.dumps(wire.as_json(settings)))
        monkeypatch.setattr(onbox, "CONFIG", str(file))
        monkeypatch.setattr(
            onbox, "invocation", lambda unit: str(units.processes[unit].pid) if units.processes else None
        )
        monkeypatch.setattr(onbox, "LOOK_EVERY", 0.05)
        call = Call(1, lambda message: None)
        async with asking(access) as asker, working(settings, units) as worker:
            told = await asyncio.to_thread(onbox.pool_restart, call, "m", one.unit, 20.0)
            assert len(units.starts) == 2 and told["waited"] > 0
            with pytest.raises(OpError, match="has no model"):
                await asyncio.to_thread(onbox.pool_restart, call, "x", one.unit, 20.0)
            with pytest.raises(OpError, match="takes requests although its box is drained"):
                await asyncio.to_thread(onbox.pool_idle, call, 0.1)
            with monkeypatch.context() as earlier, pytest.raises(OpError, match="of an earlier fleetctl"):
                earlier.setattr(onbox, "_state", lambda: {"draining": False, "models": {}})
                onbox.pool_idle(call, 20.0)
            running = await asker.send("m", "slow 800")
            await until(lambda: worker.desks["m"].engines[0].running)
            worker.drain(True)
            assert (await asyncio.to_thread(onbox.pool_idle, call, 0.1))["left"] == 1
            assert (await asyncio.to_thread(onbox.pool_idle, call, 20.0))["left"] == 0
            await asker.embedding(running)

    asyncio.run(story())
