"""``fleetctl pool``: asked of a worker that answers over HTTP, through the ops of the program on a box."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
from planned import office
from rich.console import Console
from typer.testing import CliRunner

from fleetctl.cli import session
from fleetctl.cli.main import app
from fleetctl.cli.show_pool import show_pool, told_words
from fleetctl.errors import BoxError, RefusedError, SpecError
from fleetctl.onbox import limits
from fleetctl.onbox import pool as onbox
from fleetctl.onbox.main import Call, OpError
from fleetctl.run.pool import pool_seen, wish
from fleetctl.run.subject import Subject

CALL = Call(1, lambda message: None)
GIB = 1 << 30


def engine(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "unit": f"fleetctl-pool-{name}.service", "phase": "loaded", "memory": GIB, **more}


STATE = {
    "box": "a",
    "version": 1,
    "connected": True,
    "memory": {"limit": 8 * GIB, "taken": 2 * GIB},
    "models": {
        "minilm": {"waiting": 3, "local": 0, "engines": [engine("minilm", pinned=True, running=3, calls=1)]},
        "org/q": {
            "waiting": 0,
            "local": 2,
            "engines": [engine("org/q", phase="absent", wish="evict", idle_seconds=90.0, load_seconds=21.4)],
        },
    },
    "queue": {
        "models": {
            "minilm": {"waiting": 0, "batch": 0, "oldest": 0.0},
            "org/q": {"waiting": 5, "batch": 2, "oldest": 12.5},
        }
    },
}


class Worker(BaseHTTPRequestHandler):
    """The REST interface of a worker, as fleetctl/pool/worker/rest.py has it."""

    state: Any = STATE
    told: list[str] = []

    def do_GET(self) -> None:
        self._answer(200 if self.path == "/state" else 404, self.state)

    def do_POST(self) -> None:
        self.told.append(self.path)
        if self.path == "/models/minilm/evict":
            self._answer(409, {"error": {"message": "minilm is pinned on this box\n  unpin it first"}})
        else:
            self._answer(202, {"org/q": {"phase": "loading", "pinned": False}})

    def _answer(self, status: int, told: Any) -> None:
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Worker]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Worker)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = tmp_path / "worker.json"
    config.write_text(json.dumps({"box": "a", "listen": {"host": "0.0.0.0", "port": server.server_port}}))
    monkeypatch.setattr(onbox, "CONFIG", str(config))
    monkeypatch.setattr(Worker, "state", STATE)
    monkeypatch.setattr(Worker, "told", [])
    yield Worker
    server.shutdown()
    server.server_close()


class OneBox:
    """A box whose program is called here; others have no worker."""

    def __init__(self, name: str) -> None:
        self.name = name

    def call(self, op: str, *, timeout: float, **args: Any) -> Any:
        if self.name != "a":
            return {"worker": False, "state": None, "why": ""}
        try:
            return {"pool_state": onbox.pool_state, "pool_wish": onbox.pool_wish}[op](CALL, **args)
        except OpError as error:
            raise BoxError(self.name, str(error)) from error


class AllBoxes:
    def __init__(self, reached: tuple[str, ...] = tuple(office().boxes)) -> None:
        self._reached = reached

    def each(self, fn: Callable[[Any], Any]) -> dict[str, Any]:
        return {name: fn(OneBox(name)) for name in self._reached}


SUBJECT = Subject(office(), "", cast(Any, AllBoxes()))


def test_the_workers_are_asked_and_shown_on_one_screen(worker: type[Worker]) -> None:
    seen = pool_seen(SUBJECT)
    assert (list(seen.workers), seen.without, seen.problems) == (["a"], ["b"], [])
    out = Console(width=110, record=True)
    show_pool(seen, None, out)
    lines = out.export_text().splitlines()
    assert lines[1].split() == ["a", "minilm", "loaded,", "pinned", "1.0", "GiB", "3", "0", "0", "now"]
    assert lines[2].split()[2:] == [
        "absent,",
        "kept",
        "out",
        "1.0",
        "GiB",
        "0",
        "2",
        "7",
        "12",
        "s",
        "90",
        "s",
        "ago",
        "21",
        "s",
    ]
    assert lines[3] == "a: 2.0 GiB of 8.0 GiB taken"
    out = Console(width=110, record=True)
    show_pool(seen, "minilm", out)
    assert "org/q" not in out.export_text()


def test_what_waits_is_unknown_where_the_worker_does_not_know_it(worker: type[Worker]) -> None:
    worker.state = {**STATE, "queue": None}
    out = Console(width=110, record=True)
    show_pool(pool_seen(SUBJECT), None, out)
    assert out.export_text().splitlines()[1].split()[8] == "?"


def test_a_box_that_is_off_hides_no_other_and_no_wish_is_told_meanwhile(worker: type[Worker]) -> None:
    off = {"b": BoxError("b", "no answer from 10.0.0.2 port 22 within 3 s")}
    subject = Subject(office(), "", cast(Any, AllBoxes(("a",))), off)
    seen = pool_seen(subject)
    assert list(seen.workers) == ["a"] and seen.without == []
    assert seen.problems == ["b: it cannot be reached: no answer from 10.0.0.2 port 22 within 3 s"]
    with pytest.raises(RefusedError, match=r"b: it cannot be reached: .*; nothing was changed"):
        wish(subject, "org/q", "load")
    assert worker.told == []
    assert list(wish(subject, "org/q", "load", ["a"])) == ["a"]


def test_a_worker_that_has_never_reached_the_queue_says_so(
    worker: type[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"error": {"message": "the worker has no connection to NATS yet"}}
    monkeypatch.setattr(Worker, "do_GET", lambda self: self._answer(503, told))
    assert pool_seen(SUBJECT).problems == ["a: the worker has no connection to NATS yet"]


def test_a_wish_reaches_every_worker_that_has_the_model(worker: type[Worker]) -> None:
    told = wish(SUBJECT, "org/q", "load")
    assert (list(told), worker.told) == (["a"], ["/models/org%2Fq/load"])
    assert told_words("org/q", "load", told["a"]) == "org/q is loaded as soon as there is room (now: org/q loading)"


def test_what_a_worker_refuses_is_said_as_it_says_it(worker: type[Worker]) -> None:
    with pytest.raises(BoxError, match="a: minilm is pinned on this box\n  unpin it first"):
        wish(SUBJECT, "minilm", "evict")


def test_a_model_or_a_box_that_is_not_there_is_named_with_the_nearest(worker: type[Worker]) -> None:
    with pytest.raises(SpecError, match=r"no model minilmm\n.*minilm"):
        wish(SUBJECT, "minilmm", "pin")
    with pytest.raises(SpecError, match="there is no box c"):
        pool_seen(SUBJECT, ["c"])
    with pytest.raises(RefusedError, match="no worker of a pool on b"):
        wish(SUBJECT, "minilm", "pin", ["b"])
    assert worker.told == []


def test_an_engine_that_could_not_be_loaded_and_a_lost_queue_are_problems(worker: type[Worker]) -> None:
    failed = engine("x", phase="failed", failures=2, reason="it ended before it was ready")
    worker.state = {**STATE, "connected": False, "models": {"x": {"engines": [failed]}}}
    lost, broken = pool_seen(SUBJECT).problems
    assert "no connection to NATS" in lost
    assert broken == "a: x could not be loaded, 2 times by now: it ended before it was ready"


@pytest.mark.parametrize("state", [[], {"box": "a"}, {**STATE, "memory": 3}, "x"])
def test_a_worker_of_another_kind_is_silent_and_nothing_is_wished_then(worker: type[Worker], state: Any) -> None:
    worker.state = state
    assert list(pool_seen(SUBJECT).silent) == ["a"]
    with pytest.raises(RefusedError, match="nothing was changed"):
        wish(SUBJECT, "minilm", "pin")


def test_a_worker_that_does_not_run_and_a_broken_configuration_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "worker.json"
    monkeypatch.setattr(onbox, "CONFIG", str(config))
    assert onbox.pool_state(CALL) == {"worker": False, "state": None, "why": ""}
    with pytest.raises(OpError, match="no worker of a pool here"):
        onbox.pool_wish(CALL, "minilm", "pin")
    config.write_text(json.dumps({"listen": {"host": "127.0.0.1", "port": 1}}))
    assert "does not answer at 127.0.0.1:1:" in onbox.pool_state(CALL)["why"]
    config.write_text("{")
    with pytest.raises(OpError, match="cannot be read"):
        onbox.pool_state(CALL)


SPARKS = {
    name: {"waiting": 0, "engines": [engine(name, phase=phase)]}
    for name, phase in (("minilm", "loaded"), ("qwen3-tiny", "absent"), ("bge-m3", "loaded"))
}


@pytest.mark.parametrize(
    ("line", "asked", "said"),
    [
        ("pool status", None, "a    qwen3-tiny  absent"),
        ("pool status bge-m3 --box a", None, "a    bge-m3  loaded"),
        ("pool pin minilm", "/models/minilm/pin", "a: minilm is pinned"),
        ("pool load qwen3-tiny --box a", "/models/qwen3-tiny/load", "a: qwen3-tiny is loaded as soon as there is room"),
        ("pool evict bge-m3", "/models/bge-m3/evict", "a: bge-m3 goes once its requests are answered"),
        ("pool unpin minilm", "/models/minilm/unpin", "a: minilm is not pinned any more"),
    ],
)
def test_the_commands_of_the_page_of_residency(
    line: str, asked: str | None, said: str, worker: type[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.state = {**STATE, "models": SPARKS}
    monkeypatch.setattr(session, "open_fleet", lambda *args, **how: contextlib.nullcontext(SUBJECT))
    ran = CliRunner().invoke(app, line.split())
    assert ran.exit_code == 0, ran.output
    assert said in ran.output
    assert worker.told == ([asked] if asked else [])
    as_json = CliRunner().invoke(app, [*line.split(), "--json"])
    assert json.loads(as_json.output)["type"] == ("wished" if asked else "pool")


def test_status_ends_with_9_where_something_is_wrong(worker: type[Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    worker.state = {**STATE, "connected": False}
    monkeypatch.setattr(session, "open_fleet", lambda *args, **how: contextlib.nullcontext(SUBJECT))
    ran = CliRunner().invoke(app, ["pool", "status"])
    assert (ran.exit_code, "no connection to NATS" in ran.output) == (9, True)


def test_with_limited_sudo_only_wishes_are_taken() -> None:
    assert limits.is_allowed("pool_state", {})
    allowed = [limits.is_allowed("pool_wish", {"model": "m", "wish": one}) for one in (*onbox.WISHES, "x", None)]
    assert allowed == [True] * len(onbox.WISHES) + [False] * 2
    ways = ("pool-minilm/engine.sock", "worker/control.sock", "../x/engine.sock", "a/../../b/engine.sock", "")
    paths = [f"/run/fleetctl/{way}" for way in ways]
    assert [limits.is_allowed("socket_relay", {"path": path}) for path in paths] == [True, *[False] * 4]
    assert not limits.is_allowed("socket_relay", {"path": "/run/docker.sock"})
    with pytest.raises(OpError, match="can be told load, evict, pin, unpin"):
        onbox.pool_wish(CALL, "m", "../../health")
