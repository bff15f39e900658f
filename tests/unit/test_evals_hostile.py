"""Servers that answer anything, and rules that never end: wrong with a reason, in time, and never a fault of ours."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fleetctl.engine.client import EngineClient, EngineError
from fleetctl.errors import SpecError
from fleetctl.evals import asking, judging
from fleetctl.evals.asking import Answered, Endpoint, run_suite, run_tasks
from fleetctl.evals.scenario import load_suite
from fleetctl.evals.tasks import parse_tasks

Body = bytes | Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def answering(body: Body) -> Iterator[str]:
    """A server with one answer to everything; its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(200)
            self.end_headers()
            try:
                if isinstance(body, bytes):
                    self.wfile.write(body)
                else:
                    body(self)
            except OSError:
                return

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            return None

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}"
    finally:
        http.shutdown()
        http.server_close()


def said(content: Any, **more: Any) -> bytes:
    return json.dumps({"choices": [{"message": {"content": content, **more}, "finish_reason": "stop"}]}).encode()


def dripping(request: BaseHTTPRequestHandler) -> None:
    while True:
        request.wfile.write(b" ")
        request.wfile.flush()
        time.sleep(0.05)


def flooding(request: BaseHTTPRequestHandler) -> None:
    while True:
        request.wfile.write(b"x" * 1_000_000)


DEEP = "[" * 100_000 + "]" * 100_000
CALL = {"function": {"name": "get_weather", "arguments": DEEP}}
JUNK: dict[str, Body] = {
    "nothing": b"",
    "null": b"null",
    "a list": b"[1]",
    "no choices": b'{"choices": []}',
    "a number for text": said(5),
    "a number without end": b'{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":Infinity}}',
    "too deep": DEEP.encode(),
    "too deep a call": said("", tool_calls=[CALL]),
    "calls without end": said("", tool_calls=[{"function": {"name": "x" * 1000, "arguments": "{}"}}] * 10_000),
    "blank lines for the marks of a call": said("\n" * 30_000 + "x"),
    "data of a stream that is no object": b"data: [1]\n\ndata: [DONE]\n",
    "a stream with numbers": b'data: {"choices":[{"delta":{"content":5}}]}\n\ndata: [DONE]\n',
}


def ask(body: Body, *lines: dict[str, Any], within: float = 20.0) -> list[Answered]:
    several = parse_tasks("\n".join(json.dumps({"prompt": "?", **line}) for line in lines), "t.jsonl")
    with answering(body) as url:
        return run_tasks(several, Endpoint(url, "m", within=within), concurrency=4, seed=1, heard=lambda one: None)


@pytest.mark.parametrize("body", JUNK.values(), ids=JUNK.keys())
def test_whatever_a_server_answers_is_wrong_with_a_reason(body: Body, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "LIMIT", 0.5)
    (one,) = ask(body, {"score": "exact", "expected": "y"})
    assert one.points == 0 and one.why
    suite = load_suite()
    few = suite.model_copy(update={"scenarios": suite.scenarios[:4] + suite.scenarios[-4:]})
    with answering(body) as url:
        told = run_suite(few, Endpoint(url, "m", within=20), concurrency=4, seed=1, heard=lambda one: None)
    assert len(told) == 8
    assert all(verdict.why and len(verdict.why) < 1000 for verdict in told)


def test_text_in_parts_is_text() -> None:
    (one,) = ask(
        said([{"type": "text", "text": "Par"}, {"type": "text", "text": "is"}]), {"score": "exact", "expected": "Paris"}
    )
    assert one.points == 1


@pytest.mark.parametrize(("body", "why"), [(dripping, "did not end within 1 s"), (flooding, "MiB")])
def test_an_answer_without_end_ends(body: Body, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "LARGEST", 4 << 20)
    (one,) = ask(body, {"score": "exact", "expected": "y"}, within=1.0 if body is dripping else 60.0)
    assert why in one.why


@pytest.mark.parametrize(
    ("rule", "answer"),
    [
        ({"score": "regex", "expected": "(a+)+$"}, "a" * 60 + "b"),
        ({"score": "json_schema", "json_schema": {"pattern": "(a+)+$"}}, json.dumps("a" * 60 + "b")),
        ({"score": "json_schema", "json_schema": {}}, "```" + "\n" * 200_000),
    ],
)
def test_a_rule_that_takes_years_over_an_answer_is_given_up(
    rule: dict[str, Any], answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "LIMIT", 0.3)
    slow, quick = ask(said(answer), rule, {"score": "exact", "expected": answer.strip()})
    assert (slow.points, slow.why) == (0.0, "judging the answer by its rule took more than 0.3 s")
    assert quick.points == 1


def test_in_a_thread_such_a_rule_is_given_up_too_and_what_helped_judging_is_gone() -> None:
    rule = {"score": "regex", "expected": "(a+)+$"}
    with ThreadPoolExecutor(1) as pool:
        slow, quick = pool.submit(ask, said("a" * 60 + "b"), rule, {"score": "regex", "expected": "b$"}).result()
    assert (slow.points, slow.why) == (0.0, "judging the answer by its rule took more than 5 s")
    assert quick.points == 1
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert [pid for pid in children if "judging" in Path(f"/proc/{pid}/cmdline").read_text()] == []


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"$ref": "http://192.0.2.1/schema"}, "cannot be used"),
        ({"$ref": "#/nowhere"}, "cannot be used"),
        ({"$ref": "#"}, "refers to itself without end"),
    ],
)
def test_a_schema_that_leads_nowhere_is_named_before_anything_is_asked(schema: dict[str, Any], why: str) -> None:
    line = json.dumps({"prompt": "?", "score": "json_schema", "json_schema": schema})
    with pytest.raises(SpecError, match=f"t.jsonl:1: json_schema .*{why}"):
        parse_tasks(line, "t.jsonl")


@pytest.mark.parametrize("body", [*JUNK.values(), b'{"data": [1]}', b'{"data": [{}]}', b'{"data": {"a": 1}}', b"\xff"])
def test_a_gate_that_gets_junk_fails_with_an_engine_error(body: Body) -> None:
    with answering(body) as url, EngineClient(url, timeout=20) as client:
        for question in (client.models, lambda: client.counted_chat("m", "?", 1), lambda: client.stream("m", "?", 1)):
            try:
                question()
            except EngineError as error:
                assert len(str(error.hint or "")) < 500


@pytest.mark.parametrize("body", [dripping, flooding])
def test_a_gate_waits_for_no_answer_without_end(body: Body, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetctl.engine.client.LARGEST", 4 << 20)
    monkeypatch.setattr("fleetctl.engine.client.LONGEST", 2)
    with answering(body) as url, EngineClient(url, timeout=1.0 if body is dripping else 30) as client:
        for question in (client.models, lambda: client.stream("m", "?", 1)):
            with pytest.raises(EngineError, match=r"does not end|MiB"):
                question()
