"""Gates with a score: each way of failing one, with the first wrong answers and all that was asked and answered."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
from planned import layout

from fleetctl.gates.failure import GateError
from fleetctl.gates.scored import Exam, pass_score

TASKS = "\n".join(
    json.dumps({"id": f"t{n}", "prompt": f"{n}?", "score": "numeric", "expected": n, "tolerance": 0.1})
    for n in range(20)
)


@contextmanager
def model(wrong: int = 0, status: int = 200, stalls: int = 20) -> Iterator[str]:
    """The URL of a model that says the number of each task, and another one for the last ``wrong`` of them.

    From task ``stalls`` on it does not answer before the end.
    """
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            number = int(body["messages"][0]["content"].rstrip("?"))
            if number >= stalls:
                over.wait()
                return
            text = str(number if number < 20 - wrong else number + 1)
            data = json.dumps({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}).encode()
            self.send_response(status)
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        over.set()
        server.shutdown()
        server.server_close()


def passed(url: str, floor: float, within: float = 60.0) -> tuple[dict[str, Any], list[str]]:
    said: list[str] = []
    host, _, port = url.removeprefix("http://").partition(":")
    engine = layout("replicas").engines[0].model_copy(update={"address": host, "port": int(port)})
    exam = Exam("tasks.jsonl", 4, within, tasks=TASKS)
    return pass_score(engine, exam, floor, cast(Path, None), said.append), said


def test_an_engine_that_is_good_enough_passes_with_its_score() -> None:
    with model(wrong=3) as url:
        told, said = passed(url, 85)
    assert (told, said[-1]) == ({"score": 85.0, "categories": {}}, "tasks.jsonl: 85 of 100")
    assert "tasks.jsonl: 10 of 20 tasks" in said


@pytest.mark.parametrize(
    ("ways", "within", "why", "answer", "exchanges"),
    [
        ({"wrong": 4}, 60.0, "it scored 80.0 of 100 and 85.0 is wanted (16 of 20 tasks are right)",
         "t16: it said 17; it answered '17'", 4),
        ({"status": 503}, 60.0, "answered none of the 20 questions: status 503", "", 5),
        ({"stalls": 6, "wrong": 20}, 5.0, "6 of 20 questions of tasks.jsonl were answered in 5.0 s, which", "", 6),
    ],
)  # fmt: skip
def test_an_engine_that_fails_says_what_was_wrong_and_with_what(
    ways: dict[str, Any], within: float, why: str, answer: str, exchanges: int
) -> None:
    with model(**ways) as url, pytest.raises(GateError) as failed:
        passed(url, 85, within)
    assert (
        failed.value.message.startswith("replicas/qwen@a failed the gate tasks.jsonl: ") and why in failed.value.message
    )
    assert failed.value.answer.startswith(answer) and failed.value.gate == "tasks.jsonl"
    kept = [one.told() for one in failed.value.exchanges]
    assert len(kept) == exchanges and all('"content": "' in one["request"]["text"] for one in kept)
    assert all('"choices"' in one["response"]["text"] for one in kept)
