"""What engines call the figures that are watched, over kinds and versions. Pure.

Each row says where its names are from. Counters may end in ``_total`` or not: the Prometheus client adds it when it
exposes a counter, Ray's does not, and vLLM has declared some of them with it and later without. Of several names for
one thing an engine has one; where a page has two, the first that is listed counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge"]


@dataclass(frozen=True)
class Row:
    """One figure: its field in :class:`Counts` or :class:`Figures`, and the names of the samples that have it.

    ``cache_tokens`` is the size of the cache, by which usage is weighed.
    """

    figure: str
    names: tuple[str, ...]
    kind: Kind
    source: str

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every name that a sample of it may have."""
        if self.kind == "gauge" or self.names[0].endswith(("_sum", "_count")):
            return self.names
        return tuple(name + end for name in self.names for end in ("_total", ""))


def _counter(figure: str, *names: str, source: str) -> Row:
    return Row(figure, names, "counter", source)


def _gauge(figure: str, *names: str, source: str) -> Row:
    return Row(figure, names, "gauge", source)


_VLLM_ALL = "vllm/engine/metrics.py (0.6 to 0.10), vllm/v1/metrics/loggers.py (0.8 and later)"
_VLLM_V1 = "vllm/v1/metrics/loggers.py"
_SGLANG = "sglang/srt/metrics/collector.py; needs --enable-metrics"
_LLAMA = "llama.cpp tools/server; needs --metrics"

ROWS: tuple[Row, ...] = (
    _counter("prompt_tokens", "vllm:prompt_tokens", source=_VLLM_ALL),
    _counter("generation_tokens", "vllm:generation_tokens", source=_VLLM_ALL),
    _counter("requests", "vllm:request_success", source=f"{_VLLM_ALL}; one sample for each finished_reason"),
    _counter("first_tokens", "vllm:time_to_first_token_seconds_count", source=_VLLM_ALL),
    _counter("first_token_seconds", "vllm:time_to_first_token_seconds_sum", source=_VLLM_ALL),
    _counter(
        "prefix_queries",
        "vllm:prefix_cache_queries",
        "vllm:gpu_prefix_cache_queries",
        source=f"{_VLLM_V1}; gpu_ until 0.9.1, both in 0.9.2; tokens since 0.8",
    ),
    _counter("prefix_hits", "vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits", source=f"{_VLLM_V1}; as above"),
    _counter(
        "draft_tokens",
        "vllm:spec_decode_num_draft_tokens",
        source="vllm/engine/metrics.py, vllm/v1/spec_decode/metrics.py",
    ),
    _counter(
        "accepted_tokens",
        "vllm:spec_decode_num_accepted_tokens",
        source="vllm/engine/metrics.py, vllm/v1/spec_decode/metrics.py",
    ),
    _counter("preemptions", "vllm:num_preemptions", source=_VLLM_ALL),
    _gauge("running", "vllm:num_requests_running", source=_VLLM_ALL),
    _gauge("waiting", "vllm:num_requests_waiting", source=_VLLM_ALL),
    _gauge(
        "cache_usage",
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        source=f"{_VLLM_ALL}; gpu_ until 0.9.1, both in 0.9.2; a part of 1 whatever the name says",
    ),
    _gauge("cache_tokens", "vllm:cache_config_info", source=f"{_VLLM_ALL}; its labels block_size and num_gpu_blocks"),
    _gauge("prefix_hit_rate", "vllm:gpu_prefix_cache_hit_rate", source="vllm/engine/metrics.py (0.6 to 0.10)"),
    _counter("prompt_tokens", "sglang:prompt_tokens", source=_SGLANG),
    _counter("generation_tokens", "sglang:generation_tokens", source=_SGLANG),
    _counter("requests", "sglang:num_requests", source=_SGLANG),
    _counter("first_tokens", "sglang:time_to_first_token_seconds_count", source=_SGLANG),
    _counter("first_token_seconds", "sglang:time_to_first_token_seconds_sum", source=_SGLANG),
    _counter("prefix_queries", "sglang:prompt_tokens", source=f"{_SGLANG}; every prompt token is looked up"),
    _counter("prefix_hits", "sglang:cached_tokens", source=f"{_SGLANG}; one sample for each cache_source"),
    _counter("preemptions", "sglang:num_retracted_requests", source=_SGLANG),
    _gauge("running", "sglang:num_running_reqs", source=_SGLANG),
    _gauge("waiting", "sglang:num_queue_reqs", source=_SGLANG),
    _gauge("cache_usage", "sglang:token_usage", source=_SGLANG),
    _gauge("cache_tokens", "sglang:max_total_num_tokens", source=_SGLANG),
    _gauge("prefix_hit_rate", "sglang:cache_hit_rate", source=_SGLANG),
    _gauge("acceptance", "sglang:spec_accept_rate", source=_SGLANG),
    _counter("prompt_tokens", "llamacpp:prompt_tokens", source=_LLAMA),
    _counter("generation_tokens", "llamacpp:tokens_predicted", source=_LLAMA),
    _gauge("running", "llamacpp:requests_processing", source=_LLAMA),
    _gauge("waiting", "llamacpp:requests_deferred", source=_LLAMA),
    _gauge("cache_usage", "llamacpp:kv_cache_usage_ratio", source=f"{_LLAMA}; gone since 2025"),
)

PROCESS = "process_start_time_seconds"
"""When the process that counts began (the Prometheus client's own): another value is another process.

Missing where several processes count together (PROMETHEUS_MULTIPROC_DIR: vLLM with several API servers, SGLang) and in
llama.cpp.
"""


def wanted() -> list[str]:
    """Names of all samples that are read, for the box to choose the lines by."""
    return sorted({PROCESS}.union(*(row.spellings for row in ROWS)))


def rows_of(kind: Kind) -> Iterator[Row]:
    """Rows of counters, or of gauges."""
    return (row for row in ROWS if row.kind == kind)
