"""The proxy's log becomes small counts on the box: of recorded lines, of damaged ones, and of any number of them."""

from __future__ import annotations

import json
import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.onbox.proxyfigures import histograms
from fleetctl.onbox.proxylog import GROWTH, MOST, Log, Times

BACKENDS = {"qwen": ["split-one", "replicas-one", "replicas-two"]}
# As HAProxy 2.6.12 and journalctl wrote them, newest first.
RECORDED = r"""
1796034652.401 one haproxy[41]: {"client":"192.0.2.7","key":"agents","method":"POST","path":"\/v1\/chat\/completions","status":503,"backend":"qwen","server":"<NOSRV>","held_ms":8016,"idle_ms":1,"queue_ms":-1,"connect_ms":-1,"first_byte_ms":-1,"total_ms":8017,"bytes":272,"retries":"0","queued":0,"end":"PR"}
1796034651.400 one haproxy[41]: {"client":"192.0.2.7","key":"agents","method":"POST","path":"\/v1\/chat\/completions","status":200,"backend":"qwen","server":"<lua.aloud>","held_ms":1010,"idle_ms":0,"queue_ms":0,"connect_ms":0,"first_byte_ms":0,"total_ms":8017,"bytes":447,"retries":"0","queued":0,"end":"LR"}
1796034650.300 one haproxy[41]: {"client":"192.0.2.7","key":"agents","method":"POST","path":"\/v1\/chat\/completions","status":200,"backend":"qwen","server":"replicas-two","held_ms":0,"idle_ms":2505,"queue_ms":1001,"connect_ms":0,"first_byte_ms":21,"total_ms":1022,"bytes":76,"retries":"+1","queued":0,"end":"--"}
1796034649.200 one haproxy[41]: {"client":"192.0.2.7","key":"agents","method":"POST","path":"\/v1\/chat\/completions","status":502,"backend":"qwen","server":"replicas-one","held_ms":0,"idle_ms":0,"queue_ms":0,"connect_ms":-1,"first_byte_ms":-1,"total_ms":3,"bytes":20,"retries":"3","queued":0,"end":"SH"}
1796034648.100 one haproxy[41]: {"client":"192.0.2.8","key":"-","method":"GET","path":"\/v1\/models","status":200,"backend":"qwen","server":"replicas-one","held_ms":0,"idle_ms":0,"queue_ms":0,"connect_ms":0,"first_byte_ms":1,"total_ms":1,"bytes":76,"retries":"0","queued":0,"end":"--"}
1796034647.500 one haproxy[41]: [WARNING]  (41) : Server qwen/replicas-one is UP, reason: Layer7 check passed, code: 200, check duration: 7ms. 2 active and 1 backup servers online. 0 sessions requeued, 0 total in queue.
1796034647.500 one haproxy[41]: Server qwen/replicas-one is UP, reason: Layer7 check passed, code: 200, check duration: 7ms. 2 active and 1 backup servers online. 0 sessions requeued, 0 total in queue.
1796034647.000 one haproxy[41]: {"client":"192.0.2.7","key":"-","method":"<BADREQ>","path":"-","status":400,"backend":"fleetctl_clients","server":"<NOSRV>","held_ms":-,"idle_ms":0,"queue_ms":-1,"connect_ms":-1,"first_byte_ms":-1,"total_ms":0,"bytes":0,"retries":"0","queued":0,"end":"CR"}
1796034640.000 one haproxy[41]: Server qwen/replicas-one is DOWN, reason: Layer7 timeout, check duration: 3001ms. 1 active and 1 backup servers left. 0 sessions active, 0 requeued, 0 remaining in queue.
1796034639.000 one haproxy[41]: {"client":"192.0.2.7","key":"-","method":"POST","path":"\/v1\/chat\/completions","status":200,"backend":"qwen","server":"split-one","held_ms":40,"queue_ms":6016,"connect_ms":2,"first_byte_ms":1203,"total_ms":7260,"bytes":73,"retries":"0","queued":5,"end":"--"}
1796034638.000 one haproxy[41]: {"client":"192.0.2.7","key":"-","method":"POST","path":"\/v1\/chat\/completions","status":-1,"backend":"qwen","server":"<NOSRV>","held_ms":0,"idle_ms":3,"queue_ms":4100,"connect_ms":-1,"first_byte_ms":-1,"total_ms":4100,"bytes":0,"retries":"0","queued":5,"end":"CQ"}
1796034630.000 one systemd[1]: Started fleetctl-proxy.service - fleetctl proxy on one.
"""  # noqa: E501


def told_of(lines: str) -> dict[str, Any]:
    log = Log(BACKENDS)
    for line in lines.strip("\n").split("\n"):
        log.add(line.encode("utf-8", "surrogateescape"))
    told: dict[str, Any] = json.loads(json.dumps(log.told()))
    return told


def buckets(times: dict[str, Any]) -> int:
    return sum(count for _, count in times["buckets"])


def test_recorded_lines_are_counted() -> None:
    told = told_of(RECORDED)
    requests = told["backends"]["qwen"]
    assert (told["lines"], told["damaged"]) == (12, 0)
    assert (told["oldest"], told["newest"]) == (1796034630.0, 1796034652.401)
    assert requests["counts"] == {"requests": 6, "hold_over": 1, "aloud": 1, "lost_after_retries": 1}
    assert requests["statuses"] == {"503": 1, "200": 3, "502": 1, "-1": 1}
    assert requests["ends"] == {"PR": 1, "LR": 1, "--": 2, "SH": 1, "CQ": 1}
    assert requests["tries"] == {"1": 1, "3": 1}
    longest = {name: (buckets(requests[name]), requests[name]["longest"]) for name in requests if name in TIMES}
    assert longest == {
        "held": (3, 8016),
        "idle": (3, 2505),
        "queue": (1, 6016),
        "connect": (1, 2),
        "first_byte": (2, 1203),
        "run": (2, 1204),
        "left_queue": (1, 4100),
    }


TIMES = ("held", "idle", "queue", "connect", "first_byte", "run", "left_queue")


def test_an_engine_that_was_only_late_is_a_false_alarm_and_one_that_was_refused_is_not() -> None:
    changes = told_of(RECORDED)["changes"]
    assert (changes["downs"], changes["false_alarms"], changes["relapses"]) == ({"Layer7 timeout": 1}, 1, 0)
    assert changes["checks"] == {"buckets": [[7, 1]], "longest": 7}
    refused = told_of(RECORDED.replace("Layer7 timeout", "Layer4 connection problem"))["changes"]
    assert refused["false_alarms"] == 0
    long = told_of(RECORDED.replace("1796034640.000", "1796034600.000"))["changes"]
    assert long["false_alarms"] == 0
    again = told_of(RECORDED.replace("1796034648.100 one haproxy[41]: {", DOWN_AGAIN + "1796034648.100 one x: {"))
    assert (again["changes"]["relapses"], again["changes"]["downs"]["Layer4 connection problem"]) == (1, 1)


DOWN_AGAIN = "1796034648.200 one haproxy[41]: Server qwen/replicas-one is DOWN, reason: Layer4 connection problem, x\n"


def test_nothing_of_clients_keys_or_paths_is_told() -> None:
    text = json.dumps(told_of(RECORDED.replace("agents", "topsecret").replace("completions", "mypath")))
    assert not any(word in text for word in ("192.0.2", "topsecret", "mypath", "client", "key"))


GOOD = RECORDED.strip().splitlines()[2].replace('"+1"', '"0"')


@pytest.mark.parametrize(
    "line",
    [
        GOOD[:-1],
        GOOD[:180],
        GOOD.replace('"status":200', '"status":1e999'),
        GOOD.replace('"status":200', '"status":[]'),
        GOOD.replace("1001", "-"),
        GOOD.replace("1001", "-2"),
        GOOD.replace("1001", "true"),
        GOOD.replace("1001", '"1001"'),
        GOOD.replace("1001", str(MOST + 1)),
        GOOD.replace("1001", "9" * 5000),
        GOOD.replace('"retries":"0"', '"retries":"-1"'),
        GOOD.replace('"retries":"0"', '"retries":"9999999"'),
        GOOD.replace('"end":"--"', '"end":"é-"'),
        GOOD.replace('"end":"--"', '"end":7'),
        GOOD.replace('"backend":"qwen"', '"backend":["qwen"]'),
        GOOD.replace('"bytes":76', '"bytes":' + "[" * 60000),
        GOOD.replace("{", "[1, "),
        GOOD.replace("192.0.2.7", "\udcff\udcfe").replace("total_ms", "\udcff"),
    ],
)
def test_a_damaged_line_is_counted_as_such_or_left_out_and_nothing_more(line: str) -> None:
    told = told_of(f"{GOOD}\n{line}\n{GOOD}")
    assert told["lines"] == 3
    requests = told["backends"]["qwen"]
    assert requests["counts"]["requests"] == 3 - told["damaged"]
    assert requests["queue"]["longest"] == 1001
    assert buckets(requests["run"]) == requests["counts"]["requests"]


def test_names_that_are_not_of_the_configuration_make_no_entries() -> None:
    odd = "\n".join(GOOD.replace('"qwen"', f'"b{n}"') + f"\n{GOOD.replace('replicas-two', f's{n}')}" for n in range(50))
    ends = "\n".join(GOOD.replace('"end":"--"', f'"end":"{a}{b}"') for a in "ABCDEFGHIJKLM" for b in "abcdefghijklm")
    told = told_of(f"{odd}\n{ends}")
    assert list(told["backends"]) == ["qwen"]
    assert len(told["backends"]["qwen"]["ends"]) <= 100
    assert buckets(told["backends"]["qwen"]["run"]) == 0


@pytest.mark.parametrize("line", ["", "-- No entries --", "    more of a message", ": x", "1.0 : {", "\x00\x01"])
def test_what_is_no_line_of_the_log_does_not_matter(line: str) -> None:
    assert told_of(f"{GOOD}\n{line}")["backends"]["qwen"]["counts"] == {"requests": 1}


@given(st.integers(0, MOST))
def test_a_bucket_is_as_exact_as_it_says(value: int) -> None:
    times = Times()
    times.add(value)
    ((bound, _),) = times.told()["buckets"]
    assert value <= bound <= value * GROWTH + 1


def test_a_long_log_takes_no_more_memory_than_a_short_one() -> None:
    log = Log(BACKENDS)
    chance = random.Random(3)
    line = GOOD.encode()

    def take(count: int) -> int:
        for _ in range(count):
            log.add(line.replace(b"1022", b"%d" % chance.randrange(10**6)))
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        after_some = take(5000)
        after_many = take(20000)
    finally:
        tracemalloc.stop()
    assert after_many < after_some + 20_000
    assert len(json.dumps(log.told())) < 20_000


def test_histograms_of_an_engine_are_read_from_its_metrics() -> None:
    text = """
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",model_name="a",le="0.1"} 3.0
vllm:time_to_first_token_seconds_bucket{engine="0",model_name="a",le="1.0"} 3.0
vllm:time_to_first_token_seconds_bucket{engine="0",model_name="a",le="+Inf"} 5.0
vllm:time_to_first_token_seconds_bucket{le="0.1",engine="1",model_name="}b"} 1.0
vllm:time_to_first_token_seconds_bucket{le="1.0",engine="1",model_name="b"} 2.0
vllm:time_to_first_token_seconds_bucket{le="+Inf",engine="1",model_name="b"} 2.0
vllm:request_prompt_tokens_bucket{le="x"} 2.0
vllm:request_prompt_tokens_bucket{le="10"} e
vllm:other_bucket{le="10"} 2.0
"""
    assert histograms(text) == {
        "time_to_first_token_seconds": [[0.1, 3.0], [1.0, 2.0], [None, 2.0]],
        "request_prompt_tokens": [],
    }
