"""What engines of several kinds and versions say under /metrics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.lab.standin.metrics import Metrics
from fleetctl.watch.follow import Followed
from fleetctl.watch.names import ROWS, wanted
from fleetctl.watch.reading import MOST_LINES, Reading, read, weighed
from fleetctl.watch.sample import Counts, Figures
from fleetctl.watch.told import PageTold

# vLLM 0.6.3 (V0 engine): counters declared with _total, no engine label, caches of GPU and CPU.
VLLM_0_6 = """\
# HELP vllm:num_requests_running Number of requests currently running on GPU.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} 3.0
vllm:num_requests_swapped{model_name="m"} 0.0
vllm:num_requests_waiting{model_name="m"} 1.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.25
vllm:cpu_cache_usage_perc{model_name="m"} 0.0
vllm:cpu_prefix_cache_hit_rate{model_name="m"} -1.0
vllm:gpu_prefix_cache_hit_rate{model_name="m"} 0.5
vllm:num_preemptions_total{model_name="m"} 2.0
vllm:prompt_tokens_total{model_name="m"} 1200.0
vllm:generation_tokens_total{model_name="m"} 340.0
vllm:time_to_first_token_seconds_bucket{le="0.001",model_name="m"} 0.0
vllm:time_to_first_token_seconds_count{model_name="m"} 11.0
vllm:time_to_first_token_seconds_sum{model_name="m"} 2.75
vllm:request_success_total{finished_reason="stop",model_name="m"} 7.0
vllm:request_success_total{finished_reason="length",model_name="m"} 4.0
vllm:spec_decode_num_accepted_tokens_total{model_name="m"} 30.0
vllm:spec_decode_num_draft_tokens_total{model_name="m"} 40.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1.0
process_start_time_seconds 1.72e+09
"""
# vLLM 0.8 (V1 engine): the names with gpu_ that 0.9 gave up.
VLLM_0_8 = """\
vllm:num_requests_running{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.125
vllm:gpu_prefix_cache_queries_total{engine="0",model_name="m"} 900.0
vllm:gpu_prefix_cache_hits_total{engine="0",model_name="m"} 300.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 900.0
vllm:generation_tokens_total{engine="0",model_name="m"} 100.0
"""
# vLLM 0.9.2 has both names, and counts nothing twice.
VLLM_0_9_2 = """\
vllm:num_requests_running{engine="0",model_name="m"} 1.0
vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.125
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.125
vllm:gpu_prefix_cache_queries_total{engine="0",model_name="m"} 900.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 900.0
vllm:gpu_prefix_cache_hits_total{engine="0",model_name="m"} 300.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 300.0
"""
# The same, exposed by Ray's client, which adds no _total.
VLLM_RAY = """\
vllm:prompt_tokens{engine="0",model_name="m"} 5.0
vllm:generation_tokens{engine="0",model_name="m"} 6.0
vllm:request_success{engine="0",finished_reason="stop",model_name="m"} 2.0
vllm:num_preemptions{engine="0",model_name="m"} 1.0
vllm:num_requests_running{engine="0",model_name="m"} 0.0
"""
# vLLM 0.32.0 on a CPU, with ngram drafts, after three requests; labels of cache_config_info are left out.
VLLM_0_32 = """\
process_start_time_seconds 1.79604834754e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="tiny"} 39.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="tiny"} 39.0
vllm:num_requests_running{engine="0",model_name="tiny"} 0.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.0
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 45.0
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 0.0
vllm:num_preemptions_total{engine="0",model_name="tiny"} 0.0
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 45.0
vllm:generation_tokens_total{engine="0",model_name="tiny"} 72.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"} 0.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 3.0
vllm:request_success_total{engine="0",finished_reason="abort",model_name="tiny"} 0.0
vllm:request_success_total{engine="0",finished_reason="error",model_name="tiny"} 0.0
vllm:request_success_total{engine="0",finished_reason="repetition",model_name="tiny"} 0.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny"} 3.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="tiny"} 2.8629019260406494
vllm:cache_config_info{block_size="128",engine="0",kv_cache_size_tokens="2097152",num_gpu_blocks="16384"} 1.0
"""
# Two engines behind one model name (data parallel).
TWO_ENGINES = """\
vllm:generation_tokens_total{engine="0",model_name="m"} 48456.0
vllm:generation_tokens_total{engine="1",model_name="m"} 12000.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.4
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.6
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
"""
SGLANG = """\
sglang:prompt_tokens_total{model_name="m"} 8.128902e+06
sglang:generation_tokens_total{model_name="m"} 7.557572e+06
sglang:token_usage{model_name="m",tp_rank="0"} 0.28
sglang:max_total_num_tokens{model_name="m",tp_rank="0"} 50000.0
sglang:cache_hit_rate{model_name="m",tp_rank="0"} 0.0075
sglang:cached_tokens_total{cache_source="device",model_name="m"} 60000.0
sglang:cached_tokens_total{cache_source="host",model_name="m"} 1000.0
sglang:time_to_first_token_seconds_sum{model_name="m"} 2.5
sglang:time_to_first_token_seconds_count{model_name="m"} 10.0
sglang:num_requests_total{model_name="m"} 11000.0
sglang:num_running_reqs{model_name="m",tp_rank="0"} 162.0
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 2826.0
sglang:spec_accept_rate{model_name="m",tp_rank="0"} 0.6
"""
# --enable-metrics-for-all-schedulers: every rank tells the same.
SGLANG_ALL_RANKS = """\
sglang:num_running_reqs{dp_rank="0",pp_rank="0",tp_rank="0"} 4.0
sglang:num_running_reqs{dp_rank="0",pp_rank="0",tp_rank="1"} 4.0
sglang:num_running_reqs{dp_rank="1",pp_rank="0",tp_rank="0"} 3.0
sglang:token_usage{dp_rank="0",pp_rank="0",tp_rank="0"} 0.2
sglang:token_usage{dp_rank="0",pp_rank="0",tp_rank="1"} 0.2
sglang:token_usage{dp_rank="1",pp_rank="0",tp_rank="0"} 0.4
"""
LLAMA_CPP = """\
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 1200
llamacpp:prompt_seconds_total 4.5
llamacpp:tokens_predicted_total 39080
llamacpp:tokens_predicted_seconds_total 1235.5
llamacpp:predicted_tokens_seconds nan
llamacpp:requests_processing 1
llamacpp:requests_deferred 4
"""


@pytest.mark.parametrize(
    ("what", "page", "counters", "figures"),
    [
        (
            "vLLM 0.6",
            VLLM_0_6,
            {
                "prompt_tokens": 1200,
                "generation_tokens": 340,
                "requests": 11,
                "first_tokens": 11,
                "first_token_seconds": 2.75,
                "draft_tokens": 40,
                "accepted_tokens": 30,
                "preemptions": 2,
            },
            {"running": 3, "waiting": 1, "cache_usage": 0.25, "cache_tokens": 16000, "prefix_hit_rate": 0.5},
        ),
        (
            "vLLM 0.8",
            VLLM_0_8,
            {"prompt_tokens": 900, "generation_tokens": 100, "prefix_queries": 900, "prefix_hits": 300},
            {"running": 1, "waiting": 0, "cache_usage": 0.125},
        ),
        (
            "vLLM 0.9.2",
            VLLM_0_9_2,
            {"prefix_queries": 900, "prefix_hits": 300},
            {"running": 1, "cache_usage": 0.125},
        ),
        (
            "vLLM 0.32",
            VLLM_0_32,
            {
                "prompt_tokens": 45,
                "generation_tokens": 72,
                "requests": 3,
                "first_tokens": 3,
                "first_token_seconds": 2.8629019260406494,
                "prefix_queries": 45,
                "prefix_hits": 0,
                "draft_tokens": 39,
                "accepted_tokens": 39,
                "preemptions": 0,
            },
            {"running": 0, "waiting": 0, "cache_usage": 0, "cache_tokens": 2097152},
        ),
        (
            "vLLM under Ray",
            VLLM_RAY,
            {"prompt_tokens": 5, "generation_tokens": 6, "requests": 2, "preemptions": 1},
            {"running": 0},
        ),
        (
            "two engines behind one name: 48456 + 12000, and 0.4 and 0.6 are not 1.0",
            TWO_ENGINES,
            {"generation_tokens": 60456},
            {"running": 3, "cache_usage": 0.5},
        ),
        (
            "SGLang",
            SGLANG,
            {
                "prompt_tokens": 8128902,
                "generation_tokens": 7557572,
                "requests": 11000,
                "first_tokens": 10,
                "first_token_seconds": 2.5,
                "prefix_queries": 8128902,
                "prefix_hits": 61000,
            },
            {
                "running": 162,
                "waiting": 2826,
                "cache_usage": 0.28,
                "cache_tokens": 50000,
                "prefix_hit_rate": 0.0075,
                "acceptance": 0.6,
            },
        ),
        ("SGLang, all ranks", SGLANG_ALL_RANKS, {}, {"running": 7, "cache_usage": pytest.approx(0.3)}),
        (
            "llama.cpp",
            LLAMA_CPP,
            {"prompt_tokens": 1200, "generation_tokens": 39080},
            {"running": 1, "waiting": 4},
        ),
    ],
)
def test_pages(what: str, page: str, counters: dict[str, float], figures: dict[str, float]) -> None:
    told = read(page)
    assert dict(told.counters) == counters, what
    others = {name: value for name, value in vars(told).items() if name not in ("counters", "process", "models")}
    assert {name: value for name, value in others.items() if value is not None} == figures, what


def test_vllm_0_32_as_the_stand_in_has_it() -> None:
    metrics = Metrics('a "model"', True, {"block_size": 16, "num_gpu_blocks": 100})
    metrics.add("generation_tokens", 7)
    metrics.add("spec_decode_num_draft_tokens", 4)
    metrics.observe("time_to_first_token_seconds", 0.5, 2)
    told = read(metrics.render(2, 1, 0.75).decode())
    assert set(told.counters) == set(vars(Counts()))
    assert (told.counters["generation_tokens"], told.counters["draft_tokens"]) == (7, 4)
    assert (told.counters["first_tokens"], told.counters["first_token_seconds"]) == (2, 1.0)
    assert (told.running, told.waiting, told.cache_usage, told.cache_tokens) == (2, 1, 0.75, 1600)
    assert told.process == repr(metrics.created)


def test_caches_of_different_sizes_are_weighed_where_all_sizes_are_known() -> None:
    sizes = '\nvllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="300"} 1.0'
    more = '\nvllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="100"} 1.0'
    assert read(TWO_ENGINES + sizes).cache_usage == pytest.approx(0.5)
    assert read(TWO_ENGINES + sizes + more).cache_usage == pytest.approx((3 * 0.4 + 0.6) / 4)
    assert weighed([]) is None


@pytest.mark.parametrize(
    "junk",
    [
        "",
        "<html><body>502 Bad Gateway</body></html>",
        "vllm:generation_tokens_total{engine=",
        'vllm:generation_tokens_total{engine="0"} ',
        'vllm:generation_tokens_total{engine="0"} twelve',
        "vllm:generation_tokens_total NaN",
        "vllm:generation_tokens_total +Inf",
        "vllm:generation_tokens_total" + "{" * 3000,
        'vllm:generation_tokens_total{a="' + "x" * 9000 + '"} 1',
        "\x00\x01\x02",
    ],
)
def test_junk_says_nothing_and_spoils_nothing(junk: str) -> None:
    assert read(junk).empty
    assert dict(read(f"{junk}\nvllm:prompt_tokens_total 5\n{junk}").counters) == {"prompt_tokens": 5}


STOPPED, CUT = (
    'vllm:request_success_total{finished_reason="stop"}',
    'vllm:request_success_total{finished_reason="length"}',
)


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "-Inf", "1e300", "twelve", "", '{"'])
def test_a_sum_of_which_a_part_is_no_count_is_not_known_and_not_less(value: str) -> None:
    """Less would look like a counter that began anew, and what was counted before would count twice."""
    followed = Followed("m")
    for page in (f"{STOPPED} 100\n{CUT} 10", f"{STOPPED} {value}\n{CUT} 10", f"{STOPPED} 101\n{CUT} 10"):
        followed.take(PageTold(lines=page + "\nvllm:num_requests_running 1\n", at=1.0), "boot")
    assert (followed.totals.sums["requests"], followed.totals.restarts) == (111, 0)
    assert read(f"vllm:num_requests_running {value}").running is None


def test_a_sample_that_is_told_twice_counts_once() -> None:
    assert read(f"{STOPPED} 100\n{CUT} 10\n{STOPPED} 100").counters == {"requests": 110}


def test_the_page_of_another_model_at_the_port_of_a_copy_does_not_count_for_it() -> None:
    followed = Followed("big", ("big-1", "big"))
    told = 'vllm:prompt_tokens_total{model_name="%s"} %d\n'
    assert followed.take(PageTold(lines=told % ("big-1", 10), at=1.0), "boot") is None
    assert "serves 'small', not big-1" in str(followed.take(PageTold(lines=told % ("small", 900), at=2.0), "boot"))
    assert followed.figures == Figures()
    assert followed.take(PageTold(lines=told % ("big-1", 11), at=3.0), "boot") is None
    assert (followed.totals.sums, followed.totals.restarts) == ({"prompt_tokens": 11}, 0)


def test_a_page_without_end_is_not_read_to_its_end() -> None:
    page = "\n".join(f'vllm:generation_tokens_total{{n="{n}"}} 1' for n in range(MOST_LINES + 100))
    assert read(page).counters["generation_tokens"] == MOST_LINES


@given(st.text(max_size=200))
def test_no_page_whatever_it_has_is_more_than_junk(text: str) -> None:
    assert isinstance(read(text), Reading)
    assert isinstance(read(f"vllm:prompt_tokens_total{text}"), Reading)
    assert isinstance(read(f"vllm:num_requests_running{{{text}}} 1"), Reading)


def test_every_row_of_the_table_is_a_figure_and_says_where_its_names_are_from() -> None:
    known = set(vars(Counts())) | set(vars(Figures())) | {"cache_tokens"}
    assert {row.figure for row in ROWS} <= known
    assert all(row.source for row in ROWS)
    assert len(wanted()) == len(set(wanted()))
