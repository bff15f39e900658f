"""Tasks with known answers: the file, the scorers, how sure a mean is, and models compared over HTTP."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from fleetctl.cli.main import app
from fleetctl.engine.client import EngineError
from fleetctl.errors import SpecError, UnhealthyError
from fleetctl.evals.quality import difference, estimate, percentile
from fleetctl.evals.scorers import cosine, points
from fleetctl.evals.tasks import Task, parse_tasks


def task(**rule: Any) -> Task:
    (one,) = parse_tasks(json.dumps({"prompt": "?", **rule}), "t.jsonl")
    return one


EXACT, REGEX = {"score": "exact", "expected": "Paris"}, {"score": "regex", "expected": r"\b4[0-9]\b"}
PI = {"score": "numeric", "expected": 3.14159, "tolerance": 0.01}
PERCENT = {"score": "numeric", "expected": 2000, "relative": 0.05}
ABC = {"score": "choice", "expected": "B", "options": ["A", "B", "C"]}
WORDS = {"score": "choice", "expected": "refund", "options": ["refund", "exchange", "nothing"]}
ORDER = {
    "score": "json_schema",
    "json_schema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    "expected": {"n": 3},
}


@pytest.mark.parametrize(
    ("rule", "answer", "worth"),
    [
        (EXACT, " paris \n", 1), (EXACT, "Paris.", 0), ({**EXACT, "case": True}, "paris", 0),
        (REGEX, "it is 42 today", 1), (REGEX, "it is 420", 0),
        (PI, "about 3.14", 1), (PI, "Step 1: 22/7. So it is 3.15", 1), (PI, "3.2", 0), (PI, "three", 0), (PI, "", 0),
        (PERCENT, "roughly 1,950 units", 1), (PERCENT, "1.95e3", 1), (PERCENT, "1800", 0), (PERCENT, "-2000", 0),
        (ABC, "B", 1), (ABC, "(B)", 1), (ABC, "Not A. The answer is B.", 1), (ABC, "A", 0), (ABC, "a bee", 0),
        (ABC, "It could be B or C", 0), (WORDS, "I would give a Refund.", 1), (WORDS, "refundable", 0),
        (ORDER, '{"n": 3}', 1), (ORDER, '```json\n{"n": 3, "more": 1}\n```', 1), (ORDER, '{"n": "3"}', 0),
        (ORDER, '{"n": 4}', 0), (ORDER, "n is 3", 0), (ORDER, "[" * 100_000, 0), (ORDER, '{"n": true}', 0),
    ],
)  # fmt: skip
def test_an_answer_is_worth_what_its_rule_says(rule: dict[str, Any], answer: str, worth: float) -> None:
    got, why = points(task(**rule).rule, answer)
    assert got == worth
    assert bool(why) == (worth < 1)


@pytest.mark.parametrize(
    ("at_least", "similarity", "worth"),
    [(None, 0.8, 0.8), (None, -0.2, 0), (0.75, 0.8, 1), (0.85, 0.8, 0), (0.5, None, 0), (0.5, math.nan, 0)],
)
def test_meanings_are_compared_by_their_embeddings(
    at_least: float | None, similarity: float | None, worth: float
) -> None:
    rule = task(score="similar", expected="x", at_least=at_least).rule
    assert points(rule, "y", similarity)[0] == pytest.approx(worth)


def test_the_cosine_is_that_of_the_angle() -> None:
    assert cosine([1, 0], [1, 1]) == pytest.approx(math.sqrt(0.5))
    assert math.isnan(cosine([0, 0], [1, 1]))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "t.jsonl:2 is not JSON"),
        ("[]", "t.jsonl:2 is no JSON object"),
        ('{"prompt": "a", "score": "exactly", "expected": "b"}', "t.jsonl:2"),
        ('{"prompt": "a", "expected": "b"}', "t.jsonl:2"),
        ('{"score": "exact", "expected": "b"}', "either prompt or messages"),
        ('{"prompt": "a", "score": "exact", "expected": 4}', "exact.expected"),
        ('{"prompt": "a", "score": "exact", "expected": "b", "tolerance": 1}', "tolerance"),
        ('{"prompt": "a", "score": "regex", "expected": "("}', "no regular expression"),
        ('{"prompt": "a", "score": "json_schema", "json_schema": {"type": "thing"}}', "no JSON Schema"),
        ('{"prompt": "a", "score": "choice", "expected": "D", "options": ["A", "B"]}', "not among the options"),
        ('{"id": "line 1", "prompt": "a", "score": "exact", "expected": "b"}', "several tasks have the id line 1"),
        ("[" * 100_000, "t.jsonl:2"),
    ],
)
def test_a_line_that_is_wrong_is_named(line: str, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_tasks(json.dumps({"prompt": "?", **EXACT}) + "\n" + line, "t.jsonl")
    assert said in str(refused.value) and "pydantic" not in str(refused.value)


def test_a_file_without_tasks_says_how_one_looks() -> None:
    with pytest.raises(SpecError, match="has no task"):
        parse_tasks("\n\n", "t.jsonl")


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (81, 263, 0.2553, 0.3662)],
)
def test_the_interval_of_rights_and_wrongs_is_wilsons(right: int, count: int, low: float, high: float) -> None:
    told = estimate([1.0] * right + [0.0] * (count - right))
    assert (told.low, told.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


@settings(max_examples=40)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=60))
def test_a_mean_lies_in_its_interval_or_within_a_rounding_of_it(values: list[float]) -> None:
    told = estimate(values)
    assert -1e-9 <= told.low <= told.high <= 1 + 1e-9
    assert min(values) - 1e-9 <= told.mean <= max(values) + 1e-9


def test_two_models_are_compared_task_by_task() -> None:
    # The same share is right; that they are right about the same tasks is what makes the interval narrow.
    same = [1.0, 0.0] * 50
    assert difference(same, same) == difference(same, list(same))
    assert (difference(same, same).low, difference(same, same).high) == (0, 0)
    better = difference([1.0] * 95 + [0.0] * 5, [1.0] * 80 + [0.0] * 20)
    assert better.mean == pytest.approx(0.15) and better.low > 0.05


def test_a_percentile_is_one_of_the_values() -> None:
    assert [percentile([4, 1, 3, 2], part) for part in (0.25, 0.5, 0.95, 1)] == [1, 2, 4, 4]


@pytest.fixture
def server() -> Iterator[str]:
    """Two models, of which the small one cannot multiply, and an embedding model of two dimensions."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self, value: Any) -> None:
            data = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            self._answer({"data": [{"id": name} for name in ("large", "small", "embedder")]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/v1/embeddings":
                vectors = [[1.0, 0.1 if "cold" in text else 1.0] for text in body["input"]]
                self._answer({"data": [{"embedding": vector} for vector in vectors]})
                return
            asked = body["messages"][-1]["content"]
            text = {"2+2": "4", "17*23": "391" if body["model"] == "large" else "381", "weather": "It is cold"}[asked]
            usage = {"prompt_tokens": 10, "completion_tokens": 2}
            self._answer({"choices": [{"message": {"content": text}, "finish_reason": "stop"}], "usage": usage})

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{http.server_address[1]}/v1"
    http.shutdown()
    http.server_close()


def test_a_smaller_model_is_compared_with_a_larger_one(server: str, tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"prompt": "2+2", "score": "numeric", "expected": 4},
        {"id": "hard", "prompt": "17*23", "score": "numeric", "expected": 391},
        {"prompt": "weather", "score": "similar", "expected": "cold outside", "at_least": 0.9},
    ]
    file = tmp_path / "tasks.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    ways = ["--against", server, "--models", "large,small", "--embeddings", "embedder"]
    ran = CliRunner().invoke(app, ["eval", str(file), *ways, "--json"], catch_exceptions=False)
    large, small = [event for line in ran.output.splitlines() if (event := json.loads(line))["type"] == "model"]
    assert (large["quality"], large["wrong"], large["difference"]) == (1.0, [], None)
    assert small["quality"] == pytest.approx(2 / 3)
    assert [(one["task"], one["why"]) for one in small["wrong"]] == [("hard", "it said 381")]
    assert small["difference"]["mean"] == pytest.approx(-1 / 3)
    assert (small["prompt_tokens"], small["tokens"], small["memory"]) == (30, 6, None)
    shown = CliRunner().invoke(app, ["eval", str(file), *ways], catch_exceptions=False).output
    assert "66.7 %" in shown and "small: hard: it said 381" in shown
    with pytest.raises(UnhealthyError, match=r"below 70 %: small 66\.7"):
        CliRunner().invoke(app, ["eval", str(file), *ways, "--at-least", "70"], catch_exceptions=False)
    with pytest.raises(SpecError, match=r"there is no file tool \(`fleetctl eval tools` is a test"):
        CliRunner().invoke(app, ["eval", "tool"], catch_exceptions=False)
    for wrong, said in ((["--models", "lrge"], "does not serve lrge"), ([], "scored `similar`")):
        with pytest.raises(SpecError, match=said):
            args = ["eval", str(file), "--against", server, *wrong, *(["--embeddings", "embedder"] if wrong else [])]
            CliRunner().invoke(app, args, catch_exceptions=False)


@pytest.mark.parametrize("command", [["tools"], ["FILE"]])
def test_a_server_gets_the_key_that_was_named_for_it_and_no_other(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps({"prompt": "2+2", "score": "numeric", "expected": 4}))
    monkeypatch.setenv("OPENAI_API_KEY", "of-another-server")
    monkeypatch.setenv("MINE", "mine")
    got: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            got.append(self.headers["Authorization"])
            self.send_error(401)

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    words = ["eval", *(str(file) if word == "FILE" else word for word in command)]
    words += ["--against", f"http://127.0.0.1:{http.server_address[1]}"]
    for more in ([], ["--api-key-env", "MINE"]):
        with pytest.raises(EngineError):
            CliRunner().invoke(app, [*words, *more], catch_exceptions=False)
    with pytest.raises(SpecError, match="--api-key-env NOWHERE"):
        CliRunner().invoke(app, [*words, "--api-key-env", "NOWHERE"], catch_exceptions=False)
    words[-1] = words[-1].replace("://", "://me:s3cret@")
    with pytest.raises(SpecError, match="a name or a password in it") as refused:
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert "s3cret" not in str(refused.value)
    http.shutdown()
    http.server_close()
    assert got == [None, "Bearer mine"]
