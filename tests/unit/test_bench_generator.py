"""The load generator against servers whose every byte is known: what it counts, and what it calls an error."""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import time
from collections.abc import Iterator

import pytest
from answering import CLOSE, END, HEAD, Answering, Script, Write, chunk, ending, event, piece, streamed, whole

from fleetctl.bench.connection import Asker
from fleetctl.bench.endpoint import Endpoint, parse_endpoint
from fleetctl.bench.exchange import Exchange, Request, Window
from fleetctl.bench.gauges import Gauges
from fleetctl.bench.health import judge
from fleetctl.bench.load import LoadError, Run, poisson, run
from fleetctl.bench.mix import Lengths, Mix, load_mix
from fleetctl.bench.percentiles import percentile, spread
from fleetctl.bench.summary import Target, parse_target, summarize
from fleetctl.bench.target import Bench, EndpointError
from fleetctl.errors import SpecError

SHORT = Mix(name="short", prompt=Lengths(median=20, mean=20), answer=Lengths(median=3, mean=3))


def bench(server: Answering, mix: Mix = SHORT, **more: float) -> Bench:
    return Bench(parse_endpoint(server.url), mix, gauges=False, **more)  # type: ignore[arg-type]


def one(script: Script, *, timeout: float = 5.0, stream: bool = True) -> Exchange:
    """One request to a server that answers so."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a b"}], "stream": stream}).encode()

    async def ask(server: Answering) -> Exchange:
        asker = Asker(parse_endpoint(server.url), timeout=timeout)
        try:
            return await asker.ask(Request("/chat/completions", body, stream, 3), Window(0.0))
        finally:
            asker.close()

    with Answering(script) as server:
        return run(ask(server))


def writes(*parts: bytes, then: str | None = None) -> Script:
    async def script(number: int, write: Write) -> str | None:
        for part in parts:
            write(part)
            await asyncio.sleep(0.001)
        return then

    return script


async def says_nothing(number: int, write: Write) -> None:
    await asyncio.sleep(30)


WELL = (HEAD, piece(), piece(), piece(), ending(3), END)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (writes(*WELL), None),
        (writes(b"".join(WELL)), None),
        (writes(*(bytes([byte]) for byte in b"".join(WELL)[:400])), "timeout"),
        (writes(HEAD, chunk(": waiting for an engine\n\n"), *WELL[1:]), None),
        (writes(HEAD, piece(), then=CLOSE), "stream broke off"),
        (writes(HEAD, piece(), END), "stream broke off"),
        (writes(HEAD, ending(0), END), "answer without text"),
        (writes(HEAD, piece(), event(error={"message": "engine_lost"}), ending(1), END), "error in the stream"),
        (writes(HEAD, chunk("data: {nonsense\n\n"), ending(1), END), "event is not JSON"),
        (writes(then=CLOSE), "connection closed without an answer"),
        (writes(b"SSH-2.0-OpenSSH_9.2\r\n"), "answer is not HTTP"),
        (writes(whole(503, b'{"error": "busy"}')), "status 503"),
        (writes(whole(500, b"")), "status 500"),
        (says_nothing, "timeout"),
    ],
)
def test_every_end_of_a_request_has_its_kind(script: Script, error: str | None) -> None:
    exchange = one(script, timeout=1.0)
    assert exchange.error == error
    assert exchange.ended is not None and exchange.ended >= exchange.sent
    if error is None:
        assert (exchange.chunks, exchange.output_tokens, exchange.prompt_tokens) == (3, 3, 10)


def test_thinking_aloud_and_tool_calls_are_tokens_and_an_empty_piece_is_none() -> None:
    deltas = [{"role": "assistant", "content": ""}, {"reasoning_content": "hm"}, {"tool_calls": [{"index": 0}]}, {}]
    pieces = (event(choices=[{"index": 0, "delta": delta}]) for delta in deltas)
    assert one(writes(HEAD, *pieces, ending(2), END)).chunks == 2


def test_an_answer_in_one_piece_has_a_length_and_no_first_token() -> None:
    body = {"choices": [{"message": {"content": "a b"}}], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}
    exchange = one(writes(whole(200, json.dumps(body).encode())), stream=False)
    assert (exchange.error, exchange.tokens_in, exchange.output_tokens) == (None, 9, 2)


def test_a_refused_connection_is_an_error_with_a_name() -> None:
    with Answering() as server:
        url = server.url
    with pytest.raises(EndpointError, match="connection refused"):
        Bench(parse_endpoint(url), SHORT)


def test_a_closed_loop_has_as_many_requests_under_way_as_clients() -> None:
    running, most = 0, 0

    async def counting(number: int, write: Write) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await streamed(number, write)
        running -= 1

    with Answering(counting) as server:
        told = bench(server).closed(6, warm_up=0.2, duration=1.0).summary
    assert most == 6
    assert told.failed == 0 and told.answered == told.requests > 20
    assert told.tokens_out_rate == pytest.approx(3 * told.requests_per_minute / 60, rel=0.1)
    assert told.ttft and told.total and told.ttft.p50 < told.total.p50


def test_an_open_loop_sends_at_its_times_whatever_the_answers_take() -> None:
    """A server that stands still for a second makes all wait that should have come meanwhile (coordinated omission)."""
    stalled_until = 0.0

    async def stalls(number: int, write: Write) -> None:
        nonlocal stalled_until
        if number == 30:
            stalled_until = time.perf_counter() + 1.0
        while time.perf_counter() < stalled_until:
            await asyncio.sleep(0.01)
        await streamed(number, write)

    with Answering(stalls) as server:
        opened = bench(server).open(50, warm_up=0, duration=2.0).summary
        assert len(server.at) == pytest.approx(100, abs=35)
        stalled_until = 0.0
        server.asked.clear()
        closed = bench(server).closed(1, warm_up=0, duration=2.0).summary
    assert opened.total and closed.total
    # Half of the requests of the open loop came while it stood still; the closed loop's one client met it once.
    assert opened.total.mean > 0.15 and opened.total.p90 > 0.4
    assert closed.total.p90 < 0.2 < closed.total.max


def test_what_is_unanswered_at_the_end_of_an_open_loop_has_waited_all_the_same() -> None:
    window, requests = Window(0.0, 10.0), Request("/x", b"", True, 1)
    answered, cut = Exchange(requests, 1.0, window), Exchange(requests, 2.0, window)
    answered.first = answered.last = 1.5
    answered.ended, answered.chunks, answered.status = 1.6, 1, 200
    told = summarize(Run(window, [answered], [cut], rate=1.0), Target(ttft=1.0))
    assert (told.requests, told.answered, told.unanswered, told.errors) == (2, 1, 1, {"unanswered at the end": 1})
    assert told.ttft and told.ttft.max == 8.0 and told.total and told.total.max == 8.0
    assert told.good_share == 0.5


def test_latency_counts_from_when_a_request_should_have_been_sent() -> None:
    window = Window(0.0, 10.0)
    late = Exchange(Request("/x", b"", True, 2), 1.0, window)
    late.sent, late.first, late.last, late.ended, late.chunks, late.output_tokens = 3.0, 3.5, 4.5, 4.5, 2, 2
    told = summarize(Run(window, [late], rate=1.0))
    assert told.ttft and told.tpot and told.total
    assert (told.ttft.p50, told.tpot.p50, told.total.p50) == (2.5, 1.0, 3.5)


def test_arrivals_are_seeded_and_come_at_the_rate() -> None:
    times = list(itertools.islice(poisson(20.0, 7), 4000))
    assert times == list(itertools.islice(poisson(20.0, 7), 4000)) != list(itertools.islice(poisson(20.0, 8), 4000))
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert statistics.fmean(gaps) == pytest.approx(0.05, rel=0.1)
    assert statistics.stdev(gaps) == pytest.approx(0.05, rel=0.15)


def test_tokens_are_counted_when_they_arrive_and_not_when_an_answer_ends() -> None:
    """A window that no answer ends in has its tokens all the same; pieces of two tokens count for two."""
    window = Window(1.0, 2.0)
    whole_one = Exchange(Request("/x", b"", True, 20), 0.0, window)
    whole_one.chunks, whole_one.inside, whole_one.output_tokens, whole_one.ended = 10, 5, 20, 2.5
    cut = Exchange(Request("/x", b"", True, 20), 0.5, window)
    cut.chunks, cut.inside = 4, 3
    told = summarize(Run(window, [whole_one], [cut], concurrency=2))
    assert told.tokens_out_rate == 10 + 3 * 2
    assert told.requests == 0


def test_when_nothing_is_answered_it_ends_and_says_why() -> None:
    with Answering(writes(whole(500, b'{"error": "out of memory"}'))) as server:
        began = time.monotonic()
        with pytest.raises(LoadError, match=r"not one of .* was answered: status 500") as caught:
            bench(server).closed(8, warm_up=1, duration=60)
    assert time.monotonic() - began < 30
    assert caught.value.hint == '{"error": "out of memory"}'


def test_an_engine_that_hangs_is_no_figure() -> None:
    with Answering(says_nothing) as server, pytest.raises(LoadError, match="no request was answered in all the time"):
        bench(server).closed(2, warm_up=0, duration=0.5)


def test_prompts_are_as_long_as_the_engine_counts_and_each_begins_otherwise() -> None:
    mix = Mix(name="m", prompt=Lengths(median=300, mean=330, least=100, most=900), answer=Lengths(median=9, mean=9))
    with Answering() as server:
        tested = bench(server, mix)
        tested.closed(4, warm_up=0, duration=0.5)
        texts = [body["messages"][0]["content"] for body in server.asked]
    assert tested.met.counting.per_word == pytest.approx(1.0) and tested.met.counting.added == pytest.approx(5.0)
    assert len({" ".join(text.split()[:3]) for text in texts}) == len(texts) > 20
    counted = [len(text.split()) + 5 for text in texts]
    assert min(counted) >= 95 and max(counted) <= 910
    assert {body["max_tokens"] for body in server.asked} == {9}
    assert all(body["ignore_eos"] for body in server.asked)


def test_what_is_shared_is_the_same_at_the_beginning_of_all() -> None:
    with Answering() as server:
        bench(server, SHORT.model_copy(update={"shared": 50})).closed(2, warm_up=0, duration=0.3)
        texts = [body["messages"][0]["content"].split() for body in server.asked]
    assert len({" ".join(text[:50]) for text in texts}) == 1
    assert len({" ".join(text[50:53]) for text in texts}) == len(texts)


def test_an_endpoint_that_does_not_know_ignore_eos_is_measured_without_it() -> None:
    with Answering(knows_ignore_eos=False) as server:
        tested = bench(server)
        told = tested.closed(2, warm_up=0, duration=0.3).summary
    assert told.failed == 0 and not any("ignore_eos" in body for body in server.asked)
    assert "ignore_eos" in tested.met.notes[0]


def test_a_key_is_sent_and_never_shown() -> None:
    with Answering() as server:
        endpoint = parse_endpoint(server.url, api_key="sesame")
        Bench(endpoint, SHORT, gauges=False).closed(1, warm_up=0, duration=0.2)
    assert all("authorization: Bearer sesame" in head for head in server.heads)
    assert "sesame" not in repr(endpoint)


@pytest.mark.parametrize(
    ("cpu", "lags", "late", "typical", "told"),
    [
        (0.3, [0.001] * 99, [], 0.1, []),
        (0.95, [0.001] * 99, [], 0.1, ["it used 95% of one core"]),
        (0.2, [0.0] * 50 + [0.2] * 50, [], 0.1, ["its event loop was 200 ms late (p99), although it used only 20%"]),
        (0.2, [0.0] * 50 + [0.2] * 50, [], 5.0, []),
        (0.7, [0.05] * 99, [], 0.1, ["its event loop was 50 ms late (p99)"]),
        (0.3, [0.001], [0.3] * 10, 0.1, ["requests were sent 300 ms late (p99)"]),
        (0.3, [], [], None, []),
    ],
)
def test_a_generator_that_did_not_keep_up_says_so(
    cpu: float, lags: list[float], late: list[float], typical: float | None, told: list[str]
) -> None:
    found = judge(cpu, lags, late, typical)
    assert found.saturated == bool(told)
    assert all(said.startswith(begin) for said, begin in zip(found.why, told, strict=True))


def test_a_generator_that_is_blocked_is_found_out() -> None:
    """What a slow generator measures is itself."""

    def slow(requests: Iterator[Request]) -> Iterator[Request]:
        for request in requests:
            time.sleep(0.05)
            yield request

    with Answering() as server:
        tested = bench(server)
        tested.prompts = slow(tested.prompts)  # type: ignore[assignment]
        told = tested.closed(8, warm_up=0.2, duration=1.0).summary
    assert told.generator is not None and told.generator.saturated
    assert "its event loop was" in " ".join(told.generator.why)


@pytest.mark.parametrize(
    ("text", "running", "waiting", "cache"),
    [
        ('vllm:num_requests_running{engine="0"} 3.0\nvllm:num_requests_waiting{engine="0"} 1.0\n', [3.0], [1.0], []),
        ('vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} 4\n', [7.0], [], []),
        ('vllm:kv_cache_usage_perc{engine="0"} 0.4\nvllm:kv_cache_usage_perc{engine="1"} 0.6\n', [], [], [0.6]),
        ('vllm:gpu_cache_usage_perc{model_name="m"} 0.4\n', [], [], [0.4]),
        ("sglang:num_running_reqs{} 2\nsglang:num_queue_reqs{} 5\n", [2.0], [5.0], []),
        ("vllm:num_requests_running nonsense\nprocess_cpu_seconds_total 1\n", [], [], []),
    ],
)
def test_an_engine_tells_how_many_it_runs(
    text: str, running: list[float], waiting: list[float], cache: list[float]
) -> None:
    gauges = Gauges()
    gauges.add(text)
    assert (gauges.running, gauges.waiting, gauges.cache) == (running, waiting, cache)


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(number) for number in range(1, 101)]
    assert [percentile(values, share) for share in (0, 50, 99, 100)] == [1, 50, 99, 100]
    assert percentile([], 50) is None and spread([]) is None
    told = spread(values)
    assert told and (told.p50, told.p90, told.p99, told.max, told.count) == (50, 90, 99, 100, 100)


@pytest.mark.parametrize("name", ["chat", "agent", "email", "embeddings"])
def test_built_in_mixes_have_the_lengths_that_they_say(name: str) -> None:
    import random

    mix = load_mix(name)
    rng = random.Random(1)
    drawn = sorted(mix.prompt.draw(rng) for _ in range(20_000))
    assert drawn[10_000] == pytest.approx(mix.prompt.median, rel=0.1)
    assert statistics.fmean(drawn) == pytest.approx(mix.prompt.mean, rel=0.15)
    assert mix.prompt.least <= drawn[0] and drawn[-1] <= mix.prompt.most
    assert mix.about


@pytest.mark.parametrize("text", ["ttft", "ttft=", "ttft=-1s", "speed=3", "ttft=1 parsec"])
def test_a_target_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="--target"):
        parse_target(text)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://10.0.0.11:8000", Endpoint("10.0.0.11", 8000)),
        ("http://10.0.0.11:8000/v1/", Endpoint("10.0.0.11", 8000)),
        ("https://api.example.com/openai/v1", Endpoint("api.example.com", 443, "/openai/v1", True)),
        ("http://[fd00::1]:8000", Endpoint("fd00::1", 8000)),
    ],
)
def test_an_endpoint_is_written_as_clients_have_it(url: str, told: Endpoint) -> None:
    assert parse_endpoint(url) == told


@pytest.mark.parametrize(
    "url", ["10.0.0.11:8000", "ftp://a/v1", "http://", "http://a:99999", "http://u:secret@a/v1", "http://a/v1?x"]
)
def test_a_url_that_is_no_endpoint_is_refused_without_showing_a_password(url: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_endpoint(url)
    assert "secret" not in str(caught.value)
