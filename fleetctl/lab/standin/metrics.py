"""Counters, gauges and histograms under vLLM 0.32's names, as Prometheus text."""

import bisect
import os
import time
from collections.abc import Iterable
from pathlib import Path

LATENCY = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
)  # fmt: skip
FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
INTER_TOKEN = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5)

COUNTERS = {
    "prefix_cache_queries": "Prefix cache queries, in terms of number of queried tokens.",
    "prefix_cache_hits": "Prefix cache hits, in terms of number of cached tokens.",
    "num_preemptions": "Cumulative number of preemption from the engine.",
    "prompt_tokens": "Number of prefill tokens processed.",
    "prompt_tokens_cached": "Number of cached prompt tokens (local + external).",
    "generation_tokens": "Number of generation tokens processed.",
}
SPEC_COUNTERS = {
    "spec_decode_num_drafts": "Number of spec decoding drafts.",
    "spec_decode_num_draft_tokens": "Number of draft tokens.",
    "spec_decode_num_accepted_tokens": "Number of accepted tokens.",
}
HISTOGRAMS = {
    "request_prompt_tokens": ("Number of prefill tokens processed.", TOKENS),
    "request_generation_tokens": ("Number of generation tokens processed.", TOKENS),
    "time_to_first_token_seconds": ("Histogram of time to first token in seconds.", FIRST_TOKEN),
    "inter_token_latency_seconds": ("Histogram of inter-token latency in seconds.", INTER_TOKEN),
    "request_time_per_output_token_seconds": (
        "Histogram of time_per_output_token_seconds per request.",
        INTER_TOKEN,
    ),
    "e2e_request_latency_seconds": ("Histogram of e2e request latency in seconds.", LATENCY),
    "request_queue_time_seconds": ("Histogram of time spent in WAITING phase for request.", LATENCY),
    "request_inference_time_seconds": ("Histogram of time spent in RUNNING phase for request.", LATENCY),
    "request_prefill_time_seconds": ("Histogram of time spent in PREFILL phase for request.", LATENCY),
    "request_decode_time_seconds": ("Histogram of time spent in DECODE phase for request.", LATENCY),
}
REASONS = ("stop", "length", "abort", "error", "repetition")


class Histogram:
    """Counts per bucket, with a sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, `times` times."""
        self.counts[bisect.bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def lines(self, name: str, labels: str) -> Iterable[str]:
        """The samples in Prometheus text."""
        total = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {float(total)}'
        yield f"{name}_count{{{labels}}} {float(total)}"
        yield f"{name}_sum{{{labels}}} {self.sum}"


class Metrics:
    """All metrics of one engine. Gauges are given at the time of rendering."""

    def __init__(self, model_name: str, speculative: bool, cache_config: dict[str, object]) -> None:
        escaped = model_name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        self.labels = f'engine="0",model_name="{escaped}"'
        self.documented = {**COUNTERS, **(SPEC_COUNTERS if speculative else {})}
        self.counters = dict.fromkeys(self.documented, 0.0)
        self.success = dict.fromkeys(REASONS, 0)
        self.histograms = {name: Histogram(bounds) for name, (_, bounds) in HISTOGRAMS.items()}
        self.cache_config = ",".join(f'{name}="{value}"' for name, value in cache_config.items())
        self.created = time.time()

    def add(self, name: str, amount: float) -> None:
        """Add to a counter; counters of features that are off are left out."""
        if name in self.counters:
            self.counters[name] += amount

    def observe(self, name: str, value: float, times: int = 1) -> None:
        """Count a value in a histogram."""
        self.histograms[name].observe(value, times)

    def render(self, running: int, waiting: int, cache_usage: float) -> bytes:
        """The whole exposition, as GET /metrics answers it."""
        lines = process_lines(self.created)

        def gauge(name: str, text: str, value: float, labels: str) -> None:
            lines.extend(
                (
                    f"# HELP vllm:{name} {text}",
                    f"# TYPE vllm:{name} gauge",
                    f"vllm:{name}{{{labels}}} {value}",
                )
            )

        gauge(
            "num_requests_running",
            "Number of requests in model execution batches.",
            float(running),
            self.labels,
        )
        gauge("num_requests_waiting", "Number of requests waiting to be processed.", float(waiting), self.labels)
        gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", cache_usage, self.labels)
        gauge(
            "cache_config_info",
            "Information of the LLMEngine CacheConfig",
            1.0,
            f'{self.cache_config},engine="0"',
        )
        for name, text in self.documented.items():
            lines += [f"# HELP vllm:{name}_total {text}", f"# TYPE vllm:{name}_total counter"]
            lines.append(f"vllm:{name}_total{{{self.labels}}} {self.counters[name]}")
        lines += [
            "# HELP vllm:request_success_total Count of successfully processed requests.",
            "# TYPE vllm:request_success_total counter",
        ]
        for reason, count in self.success.items():
            lines.append(f'vllm:request_success_total{{{self.labels},finished_reason="{reason}"}} {float(count)}')
        for name, (text, _) in HISTOGRAMS.items():
            lines += [f"# HELP vllm:{name} {text}", f"# TYPE vllm:{name} histogram"]
            lines += self.histograms[name].lines(f"vllm:{name}", self.labels)
        return ("\n".join(lines) + "\n").encode()


def process_lines(created: float) -> list[str]:
    """The process metrics that the Prometheus client adds: start time, memory, descriptors."""
    with open("/proc/self/statm") as statm:
        resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    values = {
        "process_start_time_seconds": ("Start time of the process since unix epoch in seconds.", created),
        "process_resident_memory_bytes": ("Resident memory size in bytes.", float(resident)),
        "process_open_fds": (
            "Number of open file descriptors.",
            float(len(list(Path("/proc/self/fd").iterdir()))),
        ),
    }
    lines: list[str] = []
    for name, (text, value) in values.items():
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name} {value}"]
    return lines
