"""What an engine says of itself while it is under load: how many requests it runs, and how many wait in it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_LINE = re.compile(
    r"^(?:vllm|sglang|llamacpp):(num_requests_running|num_running_reqs|requests_processing|num_requests_waiting|"
    r"num_queue_reqs|requests_deferred|kv_cache_usage_perc|gpu_cache_usage_perc|token_usage)"
    r"(?:\{[^}]*\})? ([0-9.eE+-]+)",
    re.MULTILINE,
)
_RUNNING = ("num_requests_running", "num_running_reqs", "requests_processing")
_WAITING = ("num_requests_waiting", "num_queue_reqs", "requests_deferred")


@dataclass
class Gauges:
    """Readings of a run. A metric that is not there leaves its list empty."""

    running: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)
    cache: list[float] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Take one page of metrics. Requests of several engine cores add up; shares of their caches do not."""
        sums: dict[str, float] = {}
        shares = []
        for name, written in _LINE.findall(text):
            try:
                value = float(written)
            except ValueError:
                continue
            key = "running" if name in _RUNNING else "waiting" if name in _WAITING else ""
            if key:
                sums[key] = sums.get(key, 0.0) + value
            else:
                shares.append(value)
        if "running" in sums:
            self.running.append(sums["running"])
        if "waiting" in sums:
            self.waiting.append(sums["waiting"])
        if shares:
            self.cache.append(max(shares))
