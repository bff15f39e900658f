"""The guard beside a pool: what goes when memory runs short and in which order, and engines of the pool that hang."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pooled import pooled
from test_guard_decisions import GIB, settings

from fleetctl.guard import __main__ as main
from fleetctl.guard import box, lodgers, systemd
from fleetctl.guard.decide import Guard
from fleetctl.guard.lodgers import Lodgers, config_in, told_in
from fleetctl.guard.notes import Notes
from fleetctl.guard.seen import Action, Answer, Engine, Lodger, Look, Memory, Pool
from fleetctl.pool import residency
from fleetctl.pool.worker import guarded


@dataclass
class Model:
    """One model of the simulated box."""

    name: str
    size: float
    pinned: bool = False
    running: int = 0
    phase: residency.Phase = "loaded"
    stuck: bool = False
    """Its requests do not end."""
    counter: float = 0.0
    run: int = 1
    answer: Answer | None = None


@dataclass
class Box:
    """A box whose worker follows the guard with the worker's own policy, a second later."""

    models: list[Model]
    available: float = 20.0
    others: float = 0.0
    """What something else takes, GiB a second."""
    act: str = "restart"
    worker: bool = True
    beside: str = ""
    """ActiveState of an engine beside the pool, of 30 GiB; empty: there is none."""
    held: str = ""
    now: float = 1000.0
    done: list[Action] = field(default_factory=list)
    guard: Guard = field(init=False)

    def __post_init__(self) -> None:
        self.guard = Guard(settings(act=self.act, silent=5.0, answer_within=5.0, idle=0.0))

    def look(self) -> Look:
        kept = tuple(
            Lodger(
                Engine(
                    one.name,
                    "active" if one.phase in ("loaded", "unloading") else "inactive",
                    run=str(one.run),
                    most=int(one.size * GIB),
                    running=one.running,
                    counters=(("tokens", one.counter),),
                    answer=one.answer,
                ),
                one.phase if self.worker else "",
                one.pinned,
            )
            for one in self.models
        )
        beside = (
            (Engine("beside", self.beside, most=30 * GIB, counters=(("t", self.now),), told=9),) if self.beside else ()
        )
        pool = Pool(60 * GIB, kept, silent=not self.worker)
        return Look(self.now, Memory(120 * GIB, int(max(0, self.available) * GIB)), beside, self.held, pool)

    def seconds(self, number: int, until: Callable[[], bool] = lambda: False) -> None:
        for _ in range(number):
            self.now += 1
            self.available -= self.others
            for one in self.models:
                one.counter += 0 if one.stuck else one.running
            for action in self.guard.see(self.look()):
                self.done.append(action)
                self._follow(action)
            if self.worker:
                self._work()
            if until():
                return

    def _follow(self, action: Action) -> None:
        if action.unit == "beside":
            if action.kind == "stop":
                self.beside, self.available = "inactive", self.available + 30
            return
        one = next((one for one in self.models if one.name == action.unit), None)
        if one is None or action.kind == "note":
            return
        if action.kind == "ask":
            one.answer = Answer(self.now, False, True, "silence")
        elif action.kind == "kill" and one.phase == "loaded":
            one.run += 1
            one.stuck = False
        else:
            self.available += one.size
            one.phase, one.running = "absent", 0

    def _work(self) -> None:
        told = self.guard.pool.told()
        engines = [
            residency.Engine(
                one.name,
                int(one.size * GIB),
                pinned=one.pinned,
                phase=one.phase,
                loaded_at=0.0 if one.phase == "loaded" else None,
                running=one.running,
                last_used=self.now - one.size,
                requests_waiting=0,
            )
            for one in self.models
        ]
        memory = 60 * GIB if told["memory"] is None else told["memory"]
        for action in residency.decide(
            self.now, residency.State(memory, engines, hold=bool(told["hold"]), reach=told["reach"])
        ):
            one = next(one for one in self.models if one.name == action.model)
            if isinstance(action, residency.Load):
                one.phase, self.available = "loaded", self.available - one.size
            else:
                one.phase = "unloading"
        for one in self.models:
            if one.phase == "unloading" and not one.stuck:
                one.phase, one.running, self.available = "absent", 0, self.available + one.size

    def phases(self) -> dict[str, str]:
        return {one.name: one.phase for one in self.models}

    def did(self) -> list[tuple[str, str]]:
        return [(action.kind, action.unit) for action in self.done if action.kind not in ("note", "ask")]


def models() -> list[Model]:
    return [Model("idle", 4), Model("old", 10), Model("busy", 8, running=2), Model("pinned", 6, pinned=True)]


def test_what_is_idle_goes_first_and_only_as_much_as_is_needed() -> None:
    b = Box(models(), available=3)
    b.seconds(30)
    assert b.phases() == {"idle": "loaded", "old": "absent", "busy": "loaded", "pinned": "loaded"}
    assert b.did() == [], "the worker stops it, the guard does nothing to a unit"


def test_what_runs_requests_goes_next_and_what_is_pinned_last() -> None:
    b = Box(models(), available=3, others=1)
    seen: list[set[str]] = []

    def gone() -> bool:
        now = {one.name for one in b.models if one.phase == "absent"}
        if not seen or seen[-1] != now:
            seen.append(now)
        return len(now) == 4

    b.seconds(120, gone)
    assert len(seen[-1]) == 4
    assert seen.index({"idle", "old"}) < seen.index({"idle", "old", "busy"}) < len(seen) - 1
    assert b.did() == []


def test_an_engine_beside_the_pool_goes_before_what_is_pinned_and_after_all_else() -> None:
    b = Box(models(), available=3, others=1, beside="active")
    b.seconds(200, lambda: b.beside == "inactive")
    assert b.beside == "inactive"
    assert b.phases() == {"idle": "absent", "old": "absent", "busy": "absent", "pinned": "loaded"}


def test_nothing_is_loaded_while_memory_is_short_and_afterwards_no_more_than_is_there() -> None:
    b = Box([Model("pinned", 10, pinned=True)], available=3, others=0)
    b.seconds(2)
    assert b.guard.pool.hold and b.phases() == {"pinned": "absent"}
    b.available = 9
    b.seconds(20)
    assert b.guard.pool.hold == "" and b.guard.pool.limit is not None
    assert b.phases() == {"pinned": "absent"}, "it would take what is missing again"
    b.available = 30
    b.seconds(20)
    assert b.guard.pool.limit is None and b.phases() == {"pinned": "loaded"}


def test_one_that_does_not_end_its_requests_is_killed_in_the_end() -> None:
    b = Box([Model("busy", 8, running=1, stuck=True)], available=3.5)
    b.seconds(60)
    assert b.did()[0] == ("kill", "busy")


def test_one_that_loads_is_stopped_before_those_that_work() -> None:
    b = Box([Model("busy", 8, running=1), Model("new", 20, phase="loading")], available=3.5)
    b.seconds(3)
    assert b.did() == [("stop", "new")]
    assert b.phases()["busy"] == "loaded"
    assert b.guard.pool.limit == 8 * GIB


def test_without_a_worker_the_guard_stops_them_itself_the_pinned_last() -> None:
    b = Box(models(), available=3, others=0, worker=False)
    b.seconds(9)
    assert b.did() == [], "it may only be starting again"
    b.others = 1
    b.seconds(90)
    assert [unit for kind, unit in b.did() if kind == "stop"] == ["old", "busy", "idle", "pinned"]


@pytest.mark.parametrize("change", [{"act": "watch"}, {"held": "anna works on the fleet"}])
def test_a_guard_that_only_watches_or_stands_back_limits_nothing(change: dict[str, Any]) -> None:
    b = Box(models(), available=1, **change)
    b.seconds(20)
    assert b.did() == [] and set(b.phases().values()) == {"loaded"}
    assert b.guard.pool.told() == {"hold": "", "memory": None, "reach": "", "out": {}}


def test_an_engine_that_hangs_is_killed_and_one_that_only_loads_is_not() -> None:
    b = Box([Model("hung", 8, running=3, stuck=True), Model("loads", 4, phase="loading", running=0)])
    b.seconds(60)
    assert b.did() == [("kill", "hung")]


def test_one_that_hangs_again_and_again_stays_out_for_an_hour() -> None:
    b = Box([Model("hung", 8, running=3, stuck=True)])
    for _ in range(4):
        assert not b.guard.pool.out
        b.models[0].stuck = True
        b.models[0].answer = None
        b.seconds(60, lambda: not b.models[0].stuck or b.phases()["hung"] == "absent")
    assert b.did()[-1] == ("stop", "hung")
    assert b.guard.pool.out == {"hung": "it hung 4 times within an hour"}
    b.seconds(3700)
    assert not b.guard.pool.out


def test_a_busy_engine_whose_requests_end_does_not_hang() -> None:
    b = Box([Model("slow", 8, running=3)])
    b.seconds(60)
    assert b.did() == []


# What is read ---------------------------------------------------------------------------------------------------------


def worker_json(release: Any, name: str = "a") -> dict[str, Any]:
    return next(
        json.loads(file.content) for file in release.files[name] if file.path == "/etc/fleetctl/pool/worker.json"
    )


def test_the_engines_of_the_pool_come_from_release_and_configuration() -> None:
    release = pooled()
    found = config_in(json.loads(release.model_dump_json()), worker_json(release), "a")
    assert found is not None
    assert [place.unit for place in found.places] == ["fleetctl-pool-minilm.service", "fleetctl-pool-small.service"]
    assert found.pinned == ("fleetctl-pool-minilm.service",)
    assert found.places[1].most == 12 * GIB
    assert found.places[0].path == "/v1/embeddings" and found.places[1].path == ""
    other = json.loads(pooled("replicas").model_dump_json())
    assert config_in(other, worker_json(release), "a") is None, "the layout that is current has no pool here"


@pytest.mark.parametrize(
    ("address", "known"),
    [
        ("unix:/run/e.sock", ("unix:/run/e.sock", 0)),
        ("http://127.0.0.1:8000", ("127.0.0.1", 8000)),
        ("http://[::1]:80", ("::1", 80)),
    ],
)
def test_where_an_engine_listens(address: str, known: tuple[str, int]) -> None:
    assert lodgers._endpoint(address) == known


def test_the_worker_is_asked_and_its_silence_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = "fleetctl-pool-small.service"
    state = {
        "models": {
            "small": {"engines": [{"unit": unit, "phase": "loaded", "pinned": True, "running": 2, "busy_seconds": 1.5}]}
        }
    }
    assert told_in(state)[unit].running == 2

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(state).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    release = pooled()
    config = worker_json(release)
    config["listen"] = {"host": "127.0.0.1", "port": server.server_address[1]}
    folder = tmp_path / "generations/1"
    folder.mkdir(parents=True)
    (folder / "release.json").write_text(release.model_dump_json())
    (tmp_path / "current").symlink_to("generations/1")
    (tmp_path / "worker.json").write_text(json.dumps(config))
    monkeypatch.setattr(box, "CURRENT", str(tmp_path / "current"))
    monkeypatch.setattr(lodgers, "CONFIG", str(tmp_path / "worker.json"))
    monkeypatch.setattr(lodgers, "EVERY", 0.02)
    monkeypatch.setattr(lodgers, "FRESH", 0.3)
    looked = Lodgers("a")

    def pool() -> Pool:
        assert looked.look()
        found = looked.pool(lambda place, told, counted: Engine(place.unit, "active", running=told.running))
        assert found is not None
        return found

    try:
        deadline = time.monotonic() + 10
        while not all(one.phase for one in pool().lodgers if one.engine.unit == unit) and time.monotonic() < deadline:
            time.sleep(0.02)
        seen = {one.engine.unit: one for one in pool().lodgers}[unit]
        assert (seen.phase, seen.pinned, seen.engine.running) == ("loaded", True, 2)
        server.shutdown()
        server.server_close()
        while not pool().silent and time.monotonic() < deadline:
            time.sleep(0.02)
        assert pool().silent
    finally:
        looked.end()


def test_what_the_guard_writes_is_what_the_worker_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = pooled()
    folder = tmp_path / "generations/1"
    folder.mkdir(parents=True)
    (folder / "release.json").write_text(release.model_dump_json())
    (tmp_path / "current").symlink_to("generations/1")
    (tmp_path / "worker.json").write_text(json.dumps(worker_json(release)))
    monkeypatch.setattr(box, "CURRENT", str(tmp_path / "current"))
    monkeypatch.setattr(box, "ACTING", str(tmp_path / "acting"))
    monkeypatch.setattr(box, "held", lambda: "")
    monkeypatch.setattr(box, "memory", lambda: Memory(120 * GIB, 3 * GIB, pressure=0.0))
    monkeypatch.setattr(lodgers, "CONFIG", str(tmp_path / "worker.json"))
    monkeypatch.setattr(lodgers, "_state", lambda config: {"models": worker_models()})
    monkeypatch.setattr(lodgers, "EVERY", 0.01)
    acts: list[tuple[str, str]] = []
    state = {"ActiveState": "active", "InvocationID": "1"}

    def act(kind: str, unit: str) -> str:
        acts.append((kind, unit))
        return ""

    monkeypatch.setattr(systemd, "act", act)
    monkeypatch.setattr(systemd, "states", lambda units: dict.fromkeys(units, state))
    notes = Notes(str(tmp_path / "notes"), str(tmp_path / "status.json"))
    monkeypatch.setattr(main, "Notes", lambda: notes)
    service = main.Service(settings(address="127.0.0.1", port=0, proxies=("127.0.0.1",), others={}))
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and guarded.said(tmp_path / "status.json").reach != "idle":
        service._tick()
        time.sleep(0.02)
    said = guarded.said(tmp_path / "status.json")
    assert "3.00 GiB available" in said.hold and said.memory == 13 * GIB + 90 * 2**20 - 5 * GIB and acts == []
    service._tick = lambda: None  # type: ignore[method-assign]
    service.stop()
    service.run()


def worker_models() -> dict[str, Any]:
    return {
        name: {
            "engines": [
                {
                    "unit": f"fleetctl-pool-{name}.service",
                    "phase": "loaded",
                    "pinned": name == "minilm",
                    "running": 0,
                    "busy_seconds": 0.0,
                }
            ]
        }
        for name in ("minilm", "small")
    }
