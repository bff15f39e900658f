"""What /metrics tells, in Prometheus's text format. Pure.

Names are vLLM's (``vllm/v1/metrics/loggers.py``) where it has one for the same thing, so that what reads vLLM's figures
reads these; what only this server has begins with ``encoder:``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
TOKENS = tuple(float(1 << power) for power in range(3, 18))


@dataclass
class Histogram:
    """Observations counted by upper bounds."""

    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """One more."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass
class Figures:
    """All that is counted since the start. Requests are those of /v1/embeddings; times are seconds."""

    running: int = 0
    """Requests of which something is being computed."""
    waiting: int = 0
    """Requests of which nothing was begun."""
    prompt_tokens: int = 0
    padding_tokens: int = 0
    inputs: int = 0
    succeeded: int = 0
    refused: dict[int, int] = field(default_factory=dict)
    """By HTTP status."""
    whole: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    queue: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    compute: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    """Of a batch."""
    request_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    batch_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS))

    def refuse(self, status: int) -> None:
        """A request was answered with an error."""
        self.refused[status] = self.refused.get(status, 0) + 1


def text(figures: Figures, model: str) -> str:
    """The page."""
    named = f'model_name="{_escaped(model)}"'
    lines: list[str] = []
    for name, kind, told, value in (
        ("vllm:num_requests_running", "gauge", "Requests of which something is being computed.", figures.running),
        ("vllm:num_requests_waiting", "gauge", "Requests of which nothing was begun.", figures.waiting),
        ("vllm:prompt_tokens_total", "counter", "Tokens that were embedded.", figures.prompt_tokens),
        ("encoder:padding_tokens_total", "counter", "Tokens that only made rows equal.", figures.padding_tokens),
        ("encoder:inputs_total", "counter", "Inputs that were embedded.", figures.inputs),
    ):
        lines += [f"# HELP {name} {told}", f"# TYPE {name} {kind}", f"{name}{{{named}}} {value}"]
    name = "vllm:request_success_total"
    lines += [f"# HELP {name} Requests that were answered.", f"# TYPE {name} counter"]
    lines.append(f'{name}{{{named},finished_reason="stop"}} {figures.succeeded}')
    name = "encoder:request_errors_total"
    lines += [f"# HELP {name} Requests that were answered with an error.", f"# TYPE {name} counter"]
    lines += [f'{name}{{{named},code="{code}"}} {count}' for code, count in sorted(figures.refused.items())]
    for name, told, histogram in (
        ("vllm:e2e_request_latency_seconds", "Seconds from the head of a request to its answer.", figures.whole),
        ("vllm:request_queue_time_seconds", "Seconds that an input waited for its batch.", figures.queue),
        ("vllm:request_prompt_tokens", "Tokens of a request.", figures.request_tokens),
        ("vllm:iteration_tokens_total", "Tokens of a batch.", figures.batch_tokens),
        ("encoder:batch_seconds", "Seconds that a batch took.", figures.compute),
    ):
        lines += [f"# HELP {name} {told}", f"# TYPE {name} histogram", *_buckets(name, named, histogram)]
    return "\n".join(lines) + "\n"


def _buckets(name: str, labels: str, histogram: Histogram) -> Iterator[str]:
    count = 0
    for bound, here in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        count += here
        told = "+Inf" if bound == float("inf") else f"{bound:g}" if bound < 1 else str(float(bound))
        yield f'{name}_bucket{{{labels},le="{told}"}} {count}'
    yield f"{name}_sum{{{labels}}} {histogram.total}"
    yield f"{name}_count{{{labels}}} {count}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
