"""Every fault of the stand-in engine can be switched on, most of them while it runs."""

from collections.abc import Iterator

import httpx
import pytest
from standin_process import Running, metric, metrics, start, until


@pytest.fixture(scope="module")
def engine() -> Iterator[Running]:
    with start(speed=1000) as running:
        yield running.wait_ready()


@pytest.fixture(autouse=True)
def healed(engine: Running) -> Iterator[None]:
    yield
    engine.set()


@pytest.mark.parametrize(
    ("fault", "health", "completion", "models"),
    [
        ({"health_lies": True}, 200, 500, 200),
        ({"error_500": True}, 200, 500, 500),
        ({"dead_engine": True}, 503, 500, 200),
        ({"dead_engine": 500}, 500, 500, 200),
    ],
)
def test_a_fault_shows_at_once_and_heals(
    engine: Running, fault: dict[str, object], health: int, completion: int, models: int
) -> None:
    engine.set(**fault)
    assert engine.health() == health
    response = engine.complete()
    assert (response.status_code, response.json()["error"]["code"]) == (completion, completion)
    assert engine.client.get("/v1/models").status_code == models
    engine.set()
    assert (engine.health(), engine.complete().status_code) == (200, 200)


def test_a_hanging_engine_is_healthy_and_its_requests_wait(engine: Running) -> None:
    engine.set(hang=True)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{engine.url}/v1/completions", json={"prompt": "x"}, timeout=0.4)
    with engine.client.stream("POST", "/v1/completions", json={"prompt": "x", "stream": True}) as response:
        assert (response.status_code, engine.health()) == (200, 200)
        text = metrics(engine)
        # As the core last told it: nothing that comes afterwards is seen.
        assert metric(text, "vllm:num_requests_running") == metric(text, "vllm:num_requests_waiting") == 0
        assert metric(text, "vllm:prompt_tokens_total") == metric(metrics(engine), "vllm:prompt_tokens_total")
    engine.set()
    until("no request left", lambda: metric(metrics(engine), "vllm:num_requests_waiting") == 0)
    assert engine.complete().status_code == 200


def test_a_starved_engine_is_healthy_says_that_requests_wait_and_starts_none(engine: Running) -> None:
    engine.set(starved=True)
    with engine.client.stream("POST", "/v1/completions", json={"prompt": "x", "stream": True}) as response:
        assert (response.status_code, engine.health()) == (200, 200)
        until("a request that waits", lambda: metric(metrics(engine), "vllm:num_requests_waiting") == 1)
        assert metric(metrics(engine), "vllm:num_requests_running") == 0
    engine.set()
    until("no request left", lambda: metric(metrics(engine), "vllm:num_requests_waiting") == 0)
    assert engine.complete().status_code == 200


def test_a_prompt_fills_the_cache_while_it_is_read_and_nothing_else_tells_of_it(engine: Running) -> None:
    engine.set(prefill_seconds_per_token=10)
    with engine.client.stream("POST", "/v1/completions", json={"prompt": "x " * 2000, "stream": True}):
        until("the cache to fill", lambda: metric(metrics(engine), "vllm:kv_cache_usage_perc") > 0)
        first, tokens = (metric(metrics(engine), f"vllm:{n}") for n in ("kv_cache_usage_perc", "prompt_tokens_total"))
        until("more of it", lambda: metric(metrics(engine), "vllm:kv_cache_usage_perc") > first)
        assert metric(metrics(engine), "vllm:prompt_tokens_total") == tokens
    engine.set()


def test_tool_calls_can_arrive_as_text() -> None:
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "tool_choice": "required",
    }
    with start("--tool-call-parser", "hermes", speed=1000, tool_calls_as_text=True) as engine:
        message = engine.wait_ready().client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    assert message["content"] == '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert "tool_calls" not in message


@pytest.mark.parametrize(("zero_exit", "status"), [(False, 1), (True, 0)])
def test_it_dies_at_the_first_request(zero_exit: bool, status: int) -> None:
    with start(die_at_first_request=True, zero_exit=zero_exit) as engine:
        engine.wait_ready()
        response = engine.complete()
        assert (response.status_code, "EngineCore" in response.text) == (500, True)
        assert engine.wait_exit() == status
        assert "Failed to find C compiler" in engine.log()


def test_it_dies_at_the_request_with_a_given_number() -> None:
    with start(die_at_request=3, speed=1000) as engine:
        engine.wait_ready()
        assert [engine.complete().status_code for _ in range(3)] == [200, 200, 500]
        assert engine.wait_exit() == 1


def test_it_fails_while_loading_with_a_traceback() -> None:
    with start(exit_during_load=0.1, load_seconds=60) as engine:
        assert engine.wait_exit() == 1
        for words in (
            "EngineCore failed to start.",
            "Traceback (most recent call last):",
            "core initialization failed",
        ):
            assert words in engine.log()


def test_it_never_gets_ready_and_gives_up_at_last() -> None:
    with start(never_ready=True, engine_ready_timeout=0.6) as engine:
        assert engine.wait_exit() == 1
        assert "TimeoutError: Timed out waiting for engine core processes to start" in engine.log()


def test_a_slow_start_takes_longer_than_the_load() -> None:
    with start(load_seconds=0.1, slow_start=0.3) as engine:
        engine.wait_log("8/8")
        took = float(engine.wait_ready().log().split("warmup model) took ")[1].split()[0])
        assert took >= 0.4
