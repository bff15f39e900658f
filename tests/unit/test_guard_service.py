"""The parts of the guard that touch the world: an engine over HTTP, the proxy's question, files of the box."""

from __future__ import annotations

import contextlib
import fcntl
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from planned import layout

from fleetctl.facts.guards import GuardFacts, guard_problems
from fleetctl.guard import asking, box
from fleetctl.guard.agent import Agent
from fleetctl.guard.asking import completion, measured
from fleetctl.guard.box import Layout, Place, places_in
from fleetctl.guard.fellows import Fellows
from fleetctl.guard.notes import LIMIT, Notes
from fleetctl.onbox import guard, kept, lock
from fleetctl.onbox.main import Call

METRICS = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.4
vllm:generation_tokens_total{engine="0",model_name="m"} 48456.0
vllm:generation_tokens_total{engine="1",model_name="m"} 12000.0
vllm:request_success_total{engine="0",finished_reason="abort",model_name="m"} 7.0
vllm:e2e_request_latency_seconds_sum{engine="0",model_name="m"} 12.5
"""


def test_what_moves_while_an_engine_works_is_read_and_summed_over_engines() -> None:
    seen = measured(METRICS)
    assert seen is not None
    assert (seen.running, seen.waiting) == (3, 4)
    assert dict(seen.counters) == {"vllm:kv_cache_usage_perc": 0.4, "vllm:generation_tokens_total": 60456.0}


@pytest.mark.parametrize(
    ("change", "works"),
    [
        (("48456.0", "48457.0"), True),
        (('usage_perc{engine="0",model_name="m"} 0.4', 'usage_perc{engine="0",model_name="m"} 0.5'), True),
        (('m"} 4.0', 'm"} 9.0'), False),  # more clients wait
        (("} 7.0", "} 8.0"), False),  # one has left
    ],
)
def test_clients_that_come_and_go_are_no_sign_of_life(change: tuple[str, str], works: bool) -> None:
    before, after = measured(METRICS), measured(METRICS.replace(*change))
    assert before is not None and after is not None
    assert (before.counters != after.counters) is works


@pytest.mark.parametrize("text", ["", "<html>502</html>", "vllm:num_requests_running x\n", "\x00\xff"])
def test_what_is_no_metrics_says_nothing(text: str) -> None:
    assert measured(text) is None


@contextmanager
def engine(status: int, *lines: str, wait: float = 0.0, chat: int = 200) -> Iterator[Place]:
    """Answers completions with a status and lines; ``chat`` is the status of the chat endpoint where it differs."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            now = chat if chat != 200 and self.path.endswith("/chat/completions") else status
            time.sleep(wait)
            self.send_response(now)
            self.end_headers()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the first word was enough
                for line in lines if now == 200 else ():
                    self.wfile.write(line.encode() + b"\n\n")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Place("u.service", "l/m@a", True, "m/l-a", "127.0.0.1", server.server_port, "m")
    finally:
        server.shutdown()
        server.server_close()


def event(**delta: Any) -> str:
    return "data: " + json.dumps({"choices": [{"delta": delta}]})


ROLE = event(role="assistant", content="")


@pytest.mark.parametrize(
    ("answer", "well"),
    [
        ([200, ROLE, event(content="Hi")], True),
        ([200, ROLE, event(reasoning_content="The user says")], True),
        ([200, ROLE, event(reasoning="The user says")], True),
        ([200, ROLE, event(tool_calls=[{"index": 0}])], True),
        ([200, ": a comment", ROLE, 'data: {"choices": [{"delta": {}, "finish_reason": "length"}]}'], True),
        ([200, ROLE, "data: [DONE]"], False),
        ([200], False),
        ([200, "data: no json"], False),
        ([500], False),
        ([503], False),
        ([401], True),
        ([429], True),
    ],
)
def test_what_counts_as_an_answer(answer: list[Any], well: bool) -> None:
    with engine(*answer) as place:
        assert completion(place, 5.0)[:2] == (well, False)


def test_an_engine_without_a_chat_template_is_asked_for_a_plain_completion() -> None:
    with engine(200, 'data: {"choices": [{"text": "Hi"}]}', chat=400) as place:
        assert completion(place, 5.0)[0]
    with engine(500, chat=400) as place:
        assert not completion(place, 5.0)[0]


def test_an_engine_that_embeds_is_asked_for_a_vector() -> None:
    for status, well in ((200, True), (500, False), (429, True)):
        with engine(status, '{"data": []}') as place:
            encoder = place._replace(path="/v1/embeddings", question='{"model": "m", "input": "Hello"}')
            assert completion(encoder, 5.0)[:2] == (well, False)
    with engine(200, "{}", wait=3.0) as place:
        assert completion(place._replace(path="/rerank", question="{}"), 0.5)[:2] == (False, True)


OTHERS = [
    ('sglang:num_running_reqs{tp_rank="0"} 2\nsglang:num_queue_reqs 1\nsglang:token_usage 0.5', (2, 1)),
    ("llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\nllamacpp:n_decode_total 9", (1, 0)),
    ('te_queue_size 3\nte_embed_success 7\nte_request_success{method="batch"} 7', (0, 3)),
]


@pytest.mark.parametrize(("page", "seen"), OTHERS, ids=["sglang", "llama.cpp", "router"])
def test_the_counters_of_other_engines_are_known_too(page: str, seen: tuple[int, int]) -> None:
    found = measured(page)
    assert found is not None and (found.running, found.waiting) == seen
    assert found.counters


def test_silence_is_told_from_an_error() -> None:
    with engine(200, event(content="late"), wait=3.0) as place:
        assert completion(place, 0.5)[:2] == (False, True)
    assert completion(place, 0.5)[:2] == (False, False)  # nobody listens there any more


def ask(port: int, text: str, source: str = "127.0.0.1") -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=5, source_address=(source, 0)) as sock:
        sock.sendall(text.encode())
        return sock.makefile().read()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_the_proxy_hears_one_word_and_nobody_else_hears_any() -> None:
    out = {"m/l-a": "memory is short"}
    agent = Agent("127.0.0.1", free_port(), ["127.0.0.2", "no.such.name.invalid"], lambda server: out.get(server, ""))
    port = agent._server.server_address[1]
    try:
        assert ask(port, "m/l-a\n") == ask(port, "m/l-a\n") == "down #memory is short\n"
        assert agent.told("m/l-a") == 2 and agent.told("m/other") == 0
        assert ask(port, "m/l-a\n", "127.0.0.2") and agent.told("m/l-a") == 1, "another has heard it once"
        assert ask(port, "m/other\n") == ask(port, "\n") == "up\n"
        assert ask(port, "m/l-a\n", "127.0.0.3") == "" and agent.refused == {"127.0.0.3"}
        out.clear()
        assert ask(port, "m/l-a\n") == "up\n" and agent.told("m/l-a") == 0
    finally:
        agent.end()


def test_a_head_hears_from_the_guard_of_its_follower() -> None:
    out = {"m/l-a": "memory is short"}
    agent = Agent("127.0.0.1", free_port(), [], lambda server: out.get(server, ""))
    guard = ("127.0.0.1", int(agent._server.server_address[1]))
    fellows = Fellows("m/l-a", (("127.0.0.1", free_port()), guard))  # the first of them does not run
    end = time.monotonic() + 20
    try:
        for words in ("memory is short", ""):
            while fellows.why_out() != words:
                assert time.monotonic() < end
                time.sleep(0.01)
            out.clear()
    finally:
        fellows.end()
        agent.end()


def test_the_engines_of_this_box_come_from_the_release_that_is_current(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(box, "CURRENT", str(tmp_path / "current"))
    looked = Layout("b")
    assert looked.look() == []
    for number, name in enumerate(("split", "replicas"), 1):
        folder = tmp_path / "generations" / str(number)
        folder.mkdir(parents=True)
        (folder / "release.json").write_text(layout(name).model_dump_json())
        (tmp_path / "current").unlink(missing_ok=True)
        (tmp_path / "current").symlink_to(f"generations/{number}")
        (place,) = looked.look()
        assert place.unit == f"fleetctl-{name}-qwen.service"
        assert place.answers is (name == "replicas")
        assert place.fellows == (() if place.answers else ("a",))
        assert place.most == int(0.87 * 128 * 2**30) if name == "replicas" else place.most > 0
    assert place.server == "qwen/replicas-b" and (place.address, place.model) == ("10.0.0.2", "qwen")
    (tmp_path / "generations/3").mkdir()
    (tmp_path / "generations/3/release.json").write_text("{")
    (tmp_path / "current").unlink()
    (tmp_path / "current").symlink_to("generations/3")
    assert looked.look() == [], "what is damaged is left alone"


def test_of_several_engines_the_largest_comes_first() -> None:
    rank = {"box": "a", "rank": 0}
    engine = {"id": "x", "backend": "m", "server": "s", "address": "a", "port": 1, "served_as": ["m"]}
    release = {
        "engines": [
            {**engine, "ranks": [{**rank, "unit": "small.service", "share": 0.2}]},
            {**engine, "ranks": [{**rank, "unit": "large.service", "share": 0.6}]},
        ]
    }
    assert [place.unit for place in places_in(release, "a")] == ["large.service", "small.service"]


def test_a_claim_a_move_that_was_cut_off_and_a_drained_box_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CLAIM", "MOVING", "DRAINED"):
        monkeypatch.setattr(box, name, str(tmp_path / name))
    assert box.held() == ""
    (tmp_path / "DRAINED").write_text('{"by": "eve", "since": 1}')
    assert box.held() == "the box is drained by eve"
    (tmp_path / "MOVING").write_text('{"operation": "cutover", "who": "bob"}')
    assert box.held() == "the cutover by bob has not ended"
    (tmp_path / "CLAIM").write_text('{"who": "ann"}')
    assert "bob" in box.held(), "a claim that nobody holds any more says nothing"
    with open(tmp_path / "CLAIM") as claim:
        fcntl.flock(claim, fcntl.LOCK_EX)
        assert box.held() == "ann works on the fleet"
        (tmp_path / "CLAIM").write_text('{"who": "ann", "aside": true}')
        assert "bob" in box.held(), "what touches no engine holds no guard back; a move that was cut off does"
    for name in ("MOVING", "DRAINED"):
        (tmp_path / name).write_text("{")
        assert box.held(), "damaged is there too"


@pytest.mark.parametrize(
    ("text", "percent"),
    [
        ("some avg10=9.00 avg60=0 avg300=0 total=0\nfull avg10=41.50 avg60=0.10 avg300=0.00 total=12\n", 41.5),
        ("some avg10=9.00 avg60=0 avg300=0 total=0\n", None),
        ("", None),
        ("full\n", None),
    ],
)
def test_pressure_that_is_not_told_is_unknown_and_not_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, percent: float | None
) -> None:
    (tmp_path / "memory").write_text(text)
    monkeypatch.setattr(box, "PRESSURE", str(tmp_path / "memory"))
    assert box.pressure() == percent
    (tmp_path / "memory").unlink()
    assert box.pressure() is None


def test_what_is_written_down_has_an_end(tmp_path: Path) -> None:
    notes = Notes(str(tmp_path), str(tmp_path / "status.json"))
    for number in range(3000):
        notes.append("events", {"number": number, "why": "x" * 250})
    sizes = {path.name: path.stat().st_size for path in tmp_path.glob("events*")}
    assert set(sizes) == {"events.jsonl", "events.1.jsonl"} and max(sizes.values()) < LIMIT + 1000
    assert json.loads((tmp_path / "events.jsonl").read_text().splitlines()[-1])["number"] == 2999


def test_what_is_kept_counts_in_the_same_boot_only(tmp_path: Path) -> None:
    notes = Notes(str(tmp_path), str(tmp_path / "status.json"))
    notes.save("boot-1", {"u.service": {"starts": [1.0]}})
    assert notes.saved("boot-1") == {"u.service": {"starts": [1.0]}}
    assert notes.saved("boot-2") is None
    (tmp_path / "state.json").write_text("{")
    assert notes.saved("boot-1") is None


def test_a_watch_sees_counters_and_then_that_they_are_no_longer_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "EVERY", 0.05)
    monkeypatch.setattr(asking, "FRESH", 0.3)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(METRICS.encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    watch = asking.Watch(Place("u.service", "l/m@a", True, "m/l-a", "127.0.0.1", server.server_port, "m"))
    try:
        end = time.monotonic() + 20
        while watch.now() is None:
            assert time.monotonic() < end
            time.sleep(0.01)
        server.shutdown()
        server.server_close()
        while watch.now() is not None:
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        watch.end()


def test_a_claim_waits_until_the_proxies_have_heard_that_the_guard_lets_a_copy_back_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = tmp_path / "status.json"
    for name in ("CLAIM", "ACTING", "GUARD_STATUS"):
        monkeypatch.setattr(lock, name, str(tmp_path / ("status.json" if name == "GUARD_STATUS" else name)))
    monkeypatch.setattr(lock, "_claimed", [])
    let_in: list[float] = []

    def say(out: str) -> None:
        status.write_text(json.dumps({"at": time.time(), "engines": [{"unit": "u", "out": out}]}))

    def guard() -> None:
        time.sleep(0.3)
        let_in.append(time.monotonic())
        say("")

    say("memory is short")
    threading.Thread(target=guard, daemon=True).start()
    lock.claim(Call(1, lambda message: None), "token", "me")
    assert let_in and time.monotonic() - let_in[0] >= lock.HEARD


def test_a_claim_for_what_touches_no_engine_lets_the_guard_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CLAIM", "MOVING", "DRAINED"):
        monkeypatch.setattr(box, name, str(tmp_path / name))
    monkeypatch.setattr(lock, "CLAIM", str(tmp_path / "CLAIM"))
    monkeypatch.setattr(lock, "_claimed", [])
    stopped: list[str] = []
    monkeypatch.setattr(lock, "_stop_the_guard", lambda call: stopped.append(box.held()))
    lock.claim(Call(1, lambda message: None), "token", "ann", aside=True)
    assert (lock.read_claim()["token"], box.held(), stopped) == ("token", "", [])
    for _ in range(2):  # a move by the same program: the guard is waited for once
        lock.claim(Call(1, lambda message: None), "token", "ann")
    assert stopped == ["ann works on the fleet"]
    lock.claim_release(Call(2, lambda message: None))


@pytest.mark.parametrize(
    ("paths", "has_one"),
    [
        (["/etc/fleetctl/bin/ready.py", "/etc/systemd/system/fleetctl-replicas-qwen.service"], True),
        (["/etc/fleetctl/proxy/haproxy.cfg", "/etc/systemd/system/fleetctl-proxy.service"], False),
        (None, False),
    ],
)
def test_a_guard_is_missed_only_where_the_current_layout_has_an_engine(
    paths: list[str] | None, has_one: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"load": "not-found", "active": "inactive", "enabled": "", "restarts": 0}
    monkeypatch.setattr(guard, "states", lambda call, units: dict.fromkeys(units, state))
    monkeypatch.setattr(guard, "pointed_at", lambda: None if paths is None else 1)
    monkeypatch.setattr(kept, "GENERATIONS", str(tmp_path))
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "meta.json").write_text(json.dumps({"paths": paths}))
    facts = GuardFacts.model_validate(guard.guard_status(Call(1, lambda message: None), [], 0))
    assert bool(guard_problems("a", facts, wanted=True)) is has_one
