"""The stand-in engine answers the OpenAI API, /metrics and errors in vLLM's form."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from standin_process import KEY, Running, metric, metrics, start

MODEL = "lab/model"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer", "minimum": 1, "maximum": 7},
                "unit": {"enum": ["C", "F"]},
            },
            "required": ["city", "days", "unit"],
        },
    },
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Running]:
    """One engine for all tests that do not change it."""
    with start(
        "--served-model-name", MODEL, "other-name", "--max-model-len", "4k", "--max-num-seqs", "16",
        "--api-key", KEY, "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
        "--speculative-config.method", "mtp", "--speculative-config.num_speculative_tokens", "4",
        speed=1000,
    ) as running:  # fmt: skip
        yield running.wait_ready()


def chat(content: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **more}


def post(engine: Running, body: object, path: str = "/v1/chat/completions") -> httpx.Response:
    return engine.client.post(path, json=body)


def events(engine: Running, body: dict[str, Any], path: str = "/v1/chat/completions") -> list[Any]:
    with engine.client.stream("POST", path, json=body) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_health_is_open_and_has_no_body(engine: Running) -> None:
    response = httpx.get(f"{engine.url}/health")
    assert (response.status_code, response.content) == (200, b"")


def test_models_lists_every_served_name_with_the_context_length(engine: Running) -> None:
    cards = engine.client.get("/v1/models").json()["data"]
    assert [(card["id"], card["max_model_len"]) for card in cards] == [(MODEL, 4000), ("other-name", 4000)]


@pytest.mark.parametrize("header", [None, "Bearer wrong", f"Basic {KEY}", KEY])
def test_a_missing_or_wrong_key_is_refused(engine: Running, header: str | None) -> None:
    headers = {"authorization": header} if header else {}
    response = httpx.get(f"{engine.url}/v1/models", headers=headers)
    assert (response.status_code, response.json()) == (401, {"error": "Unauthorized"})


def test_the_same_prompt_gives_the_same_text(engine: Running) -> None:
    answers = [post(engine, chat("which box?")).json() for _ in range(2)]
    texts = [answer["choices"][0]["message"]["content"] for answer in answers]
    assert texts[0] == texts[1] != post(engine, chat("which other box?")).json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_the_token_limit_is_kept_and_counted(engine: Running, limit: str) -> None:
    answer = post(engine, chat(**{limit: 7})).json()
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["finish_reason"] == "length"
    usage = answer["usage"]
    assert usage["completion_tokens"] == 7 == len(answer["choices"][0]["message"]["content"].split())
    assert usage["total_tokens"] == usage["prompt_tokens"] + 7


def test_an_answer_ends_by_itself_unless_told_to_go_on(engine: Running) -> None:
    assert post(engine, chat(max_tokens=3000)).json()["choices"][0]["finish_reason"] == "stop"
    longer = post(engine, chat(max_tokens=300, ignore_eos=True)).json()
    assert (longer["choices"][0]["finish_reason"], longer["usage"]["completion_tokens"]) == ("length", 300)


def test_a_stream_gives_the_same_text_and_the_usage_at_its_end(engine: Running) -> None:
    whole = post(engine, chat(max_tokens=9)).json()
    chunks = events(engine, chat(max_tokens=9, stream=True, stream_options={"include_usage": True}))
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(c["choices"][0]["delta"]["content"] for c in chunks if c["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["completion_tokens"]) == ([], 9)


def test_plain_completions_answer_and_stream(engine: Running) -> None:
    body = {"model": "other-name", "prompt": "once upon", "max_tokens": 5}
    whole = post(engine, body, "/v1/completions").json()
    assert (whole["object"], whole["usage"]["completion_tokens"]) == ("text_completion", 5)
    chunks = events(engine, {**body, "stream": True}, "/v1/completions")
    assert "".join(c["choices"][0]["text"] for c in chunks) == whole["choices"][0]["text"]


@pytest.mark.parametrize("choice", ["required", "auto", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_tool_call_has_arguments_that_fit_the_schema(engine: Running, choice: object) -> None:
    body = chat("weather in Bonn?", tools=[TOOL], tool_choice=choice)
    answer = post(engine, body).json()["choices"][0]
    assert (answer["finish_reason"], answer["message"]["content"]) == ("tool_calls", None)
    call = answer["message"]["tool_calls"][0]["function"]
    arguments = json.loads(call["arguments"])
    assert call["name"] == "get_weather" and set(arguments) == {"city", "days", "unit"}
    assert 1 <= arguments["days"] <= 7 and arguments["unit"] in "CF" and isinstance(arguments["city"], str)
    streamed = events(engine, {**body, "stream": True})[-1]["choices"][0]
    assert streamed["delta"]["tool_calls"][0]["function"] == call


@pytest.mark.parametrize(
    ("body", "status", "kind", "words"),
    [
        (
            {**chat(), "model": "nobody"},
            404,
            "NotFoundError",
            "The model `nobody` does not exist. Valid aliases: lab/model, other-name.",
        ),
        (chat("x" * 17_000), 400, "BadRequestError", "maximum context length is 4000 tokens"),
        (chat(max_tokens=0), 400, "BadRequestError", "max_tokens must be at least 1, got 0."),
        (chat(max_tokens=4001), 400, "BadRequestError", "max_tokens=4001 cannot be greater than"),
        (chat(max_tokens="7"), 400, "Bad Request", "'loc': 'body.max_tokens'"),
        ({"model": MODEL}, 400, "Bad Request", "'loc': 'body.messages', 'msg': 'Field required'"),
        ([], 400, "Bad Request", "valid dictionary"),
    ],
)
def test_a_bad_request_is_answered_in_the_openai_form(
    engine: Running, body: object, status: int, kind: str, words: str
) -> None:
    response = post(engine, body)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (status, status, kind)
    assert words in error["message"]


def test_bytes_that_are_no_json_are_refused(engine: Running) -> None:
    headers = {"content-type": "application/json"}
    response = engine.client.post("/v1/completions", content=b'{"model": ', headers=headers)
    assert response.status_code == 400 and "json_invalid" in response.json()["error"]["message"]


def test_unknown_paths_and_methods_are_404_and_405(engine: Running) -> None:
    assert engine.client.get("/nothing").json()["error"]["message"] == "Not Found"
    assert engine.client.get("/v1/completions").status_code == 405


def test_embeddings_are_unit_vectors_that_depend_on_the_text(engine: Running) -> None:
    body = {"model": MODEL, "input": ["a", "b", "a"]}
    first, second, third = (item["embedding"] for item in post(engine, body, "/v1/embeddings").json()["data"])
    assert first == third != second
    assert sum(value * value for value in first) == pytest.approx(1.0)


def test_tokenize_counts_as_the_usage_does(engine: Running) -> None:
    body = chat("count these words, please")
    count = engine.client.post("/tokenize", json=body).json()["count"]
    assert count == post(engine, {**body, "max_tokens": 1}).json()["usage"]["prompt_tokens"]


def test_metrics_count_requests_and_tokens_under_vllms_names(engine: Running) -> None:
    before = metrics(engine)
    usage = post(engine, chat("count me once", max_tokens=11)).json()["usage"]
    after = metrics(engine)

    def grown(name: str, **labels: str) -> float:
        return metric(after, name, **labels) - metric(before, name, **labels)

    assert grown("vllm:generation_tokens_total") == 11
    assert grown("vllm:prompt_tokens_total") == usage["prompt_tokens"]
    assert grown("vllm:request_success_total", finished_reason="length") == 1
    assert grown("vllm:time_to_first_token_seconds_count") == 1
    assert grown("vllm:e2e_request_latency_seconds_bucket", le="+Inf") == 1
    assert grown("vllm:spec_decode_num_draft_tokens_total") == pytest.approx(
        4 * grown("vllm:spec_decode_num_drafts_total")
    )
    assert metric(after, "vllm:num_requests_running") == 0
    assert metric(after, "process_start_time_seconds") == pytest.approx(time.time(), abs=300)
    assert 'engine="0",model_name="lab/model"' in after


def test_a_repeated_prompt_hits_the_prefix_cache(engine: Running) -> None:
    body = chat("the same long beginning " * 40, max_tokens=1)
    post(engine, body)
    before = metrics(engine)
    post(engine, body)
    assert metric(metrics(engine), "vllm:prefix_cache_hits_total") > metric(before, "vllm:prefix_cache_hits_total")


def test_one_connection_serves_many_requests_and_chunked_bodies(engine: Running) -> None:
    with httpx.Client(base_url=engine.url, headers=engine.client.headers) as client:
        for _ in range(20):
            assert client.get("/health").status_code == 200
        content = iter([b'{"model": "other-name", ', b'"prompt": "x", "max_tokens": 2}'])
        headers = {"content-type": "application/json"}
        response = client.post("/v1/completions", content=content, headers=headers)
        assert response.json()["usage"]["completion_tokens"] == 2


def test_hundreds_of_small_requests_are_answered_at_once(engine: Running) -> None:
    body = {"model": MODEL, "prompt": "x", "max_tokens": 1}
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: post(engine, body, "/v1/completions").status_code, range(200)))
    assert set(answers) == {200}


def test_a_stream_over_a_kept_connection_begins_at_once(engine: Running) -> None:
    """Head and first event are two packets; Nagle's algorithm would keep the second one back for 40 ms."""
    took = []
    for _ in range(21):
        begin = time.monotonic()
        with engine.client.stream("POST", "/v1/chat/completions", json=chat(stream=True, max_tokens=1)) as response:
            pieces = response.iter_raw()
            next(pieces)
            took.append(time.monotonic() - begin)
            assert b"[DONE]" in b"".join(pieces)
    assert sorted(took)[10] < 0.03
