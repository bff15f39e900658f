"""Figures from the log of an engine that runs, and how they get into fleet.yaml."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.capacity.calibration import Started, measure, written
from fleetctl.capacity.overhead import GIB
from fleetctl.errors import RefusedError, SpecError
from fleetctl.spec.edit import with_measured
from fleetctl.spec.fleet_model import Measured
from fleetctl.spec.load import parse_fleet

LOG = """\
(APIServer pid=1) INFO 11-30 07:10:02 [utils.py:1] vLLM API server version 0.32.0
(EngineCore pid=7) INFO Model loading took 73.97 GiB memory and 61.500000 seconds
(EngineCore pid=7) INFO Available KV cache memory: 10.62 GiB
(EngineCore pid=7) INFO GPU KV cache size: 774,182 tokens
"""


def started(log: str = LOG, share: float = 0.74) -> Started:
    return Started("replicas/qwen@spark1", "spark1", 1, round(121.63 * GIB), share, 8192, log)


def test_overhead_is_what_the_share_gave_less_weights_and_cache() -> None:
    found = measure(started(), "2026-11-30")
    assert found.weights == round(73.97 * GIB)
    assert found.overhead == pytest.approx(0.74 * 121.63 * GIB - (73.97 + 10.62) * GIB, abs=2)
    assert (found.peak, found.ranks, found.batched_tokens, found.at) == (None, 1, 8192, "2026-11-30")
    peak = measure(started(LOG + "INFO torch peak memory increase: 1.26 GiB\n"), "2026-11-30").peak
    assert peak == round(1.26 * GIB)


def test_of_several_ranks_in_one_log_the_one_with_the_least_room_counts() -> None:
    two = LOG + "Model loading took 74.50 GiB memory and 1 seconds\nAvailable KV cache memory: 9.00 GiB\n"
    assert measure(started(two), "d").weights == round(74.5 * GIB)


CPU = (
    "INFO Auto set (0.22/15.21) GiB for KV cache on node 0, with 0.76 GiB requested memory for the worker. "
    "0.54 GiB memory was consumed by non-kv usages.\nINFO CPU KV cache size: 304,384 tokens\n"
)


def test_an_engine_on_a_cpu_says_what_it_takes_in_all_and_the_files_what_of_that_are_weights() -> None:
    start = Started("replicas/tiny@box1", "box1", 1, 8 * GIB, 0.05, 8192, CPU, weights=GIB // 4)
    found = measure(start, "2026-11-30")
    assert (found.weights, found.overhead) == (GIB // 4, round(0.54 * GIB) - GIB // 4)


@pytest.mark.parametrize(
    ("taken", "startup"),
    [
        (None, None),  # nobody looked while it started
        ((90 * GIB, 80 * GIB), 90 * GIB),
        ((9 * GIB, 2 * GIB), None),  # its weights are in the memory of a GPU
    ],
)
def test_the_peak_of_a_start_counts_where_the_memory_of_the_box_is_that_of_the_gpu(taken: Any, startup: Any) -> None:
    assert measure(replace(started(), taken=taken), "2026-11-30").startup == startup


@pytest.mark.parametrize(
    ("log", "share", "said"),
    [
        ("", 0.74, "did not log its weights and memory for its cache"),
        (LOG.replace("Available", "Some"), 0.74, "did not log memory for its cache"),
        (LOG, 0.5, "more than the 60.8 GiB of its share"),
        ("INFO Explicitly set (0.12/15.21) GiB for KV cache on node 0.", 0.74, "in bytes"),
        (LOG + "reserved 8.2 GiB memory for KV Cache as specified by kv_cache_memory_bytes config", 0.74, "in bytes"),
    ],
)
def test_what_a_log_does_not_tell_is_refused_with_what_to_do(log: str, share: float, said: str) -> None:
    with pytest.raises(RefusedError, match=said) as refused:
        measure(started(log, share), "2026-11-30")
    assert refused.value.hint


HEAD = """\
fleet: office   # ours
boxes:
  a: {address: 10.0.0.1, memory: 100GiB, reserve: 20GiB}
  b: {address: 10.0.0.2, memory: 100GiB, reserve: 20GiB}
models:
"""
TAIL = """\
layouts:
  one: {m: {copies: [a, b]}}   # both
proxy: {box: a}
"""
FIGURES = {"weights": "73MiB", "overhead": "5MiB", "ranks": "1", "batched_tokens": "8192", "at": '"2026-11-30"'}
ENTRY = '{weights: 73MiB, overhead: 5MiB, ranks: 1, batched_tokens: 8192, at: "2026-11-30"}'
PLAIN = "  m:\n    weights: org/m   # here\n    launch: {venv: /opt/vllm}\n    context: 8192   # long\n"
CASES = {
    "behind the last plain key": (PLAIN, [f"+     measured: {{a: {ENTRY}}}"]),
    "in flow style": (
        "  m: {weights: org/m, context: 8192, launch: {venv: /opt/vllm}}   # m\n",
        [
            "-   m: {weights: org/m, context: 8192, launch: {venv: /opt/vllm}}   # m",
            f"+   m: {{weights: org/m, context: 8192, measured: {{a: {ENTRY}}}, launch: {{venv: /opt/vllm}}}}   # m",
        ],
    ),
    "beside another box": (
        PLAIN + '    measured: {b: {weights: 1GiB, overhead: 1GiB, at: "1"}}\n',
        [
            '-     measured: {b: {weights: 1GiB, overhead: 1GiB, at: "1"}}',
            f'+     measured: {{a: {ENTRY}, b: {{weights: 1GiB, overhead: 1GiB, at: "1"}}}}',
        ],
    ),
    "in place of what was there": (
        PLAIN + '    measured:\n      a: {weights: 1GiB, overhead: 1GiB, at: "1"}   # old\n      b: {weights: 1GiB, '
        'overhead: 1GiB, at: "1"}\n',
        ['-       a: {weights: 1GiB, overhead: 1GiB, at: "1"}   # old', f"+       a: {ENTRY}   # old"],
    ),
    "where nothing was measured yet": (
        PLAIN + "    measured: {}   # none\n",
        ["-     measured: {}   # none", f"+     measured: {{a: {ENTRY}}}   # none"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_only_the_figures_change_in_the_file(case: str) -> None:
    text, expected = CASES[case]
    before = HEAD + text + TAIL
    after = with_measured(before, "m", "a", FIGURES)
    told = [line.rstrip() for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[0] in "+-"]
    assert told == expected
    assert parse_fleet(after, "f").models["m"].measured["a"].overhead == 5 * 2**20


def test_a_second_time_the_same_figures_change_nothing() -> None:
    once = with_measured(HEAD + PLAIN + TAIL, "m", "a", FIGURES)
    assert with_measured(once, "m", "a", FIGURES) == once


def test_what_cannot_be_edited_alone_is_told_with_what_to_write() -> None:
    shared = "  m: &m {weights: org/m, context: 8192, launch: {venv: /opt/vllm}}\n  n: *m\n"
    with pytest.raises(SpecError, match="cannot be edited") as refused:
        with_measured(HEAD + shared + TAIL, "m", "a", FIGURES)
    assert "under models: m: measured" in (refused.value.hint or "") and ENTRY in (refused.value.hint or "")


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.none() | st.integers(0, 2**40), st.integers(1, 8))
def test_figures_are_written_as_they_are_read_back(weights: int, overhead: int, peak: int | None, ranks: int) -> None:
    """Rounded up to whole MiB: a plan never counts on more room than was seen."""
    found = Measured(weights=weights, overhead=overhead, peak=peak, ranks=ranks, at="2026-11-30")
    found = found.model_copy(update={"startup": peak})
    figures = written(found)
    again = Measured.model_validate({key: yaml.safe_load(value) for key, value in figures.items()})
    assert 0 <= again.weights - weights < 2**20 and 0 <= again.overhead - overhead < 2**20
    assert (again.ranks, again.at) == (ranks, "2026-11-30")
