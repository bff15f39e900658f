"""What a gateway counts, as Prometheus reads it."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict

BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Upper bounds in seconds."""


class Metrics:
    """Counters of one gateway since it was started."""

    def __init__(self) -> None:
        self.requests: defaultdict[tuple[str, int], int] = defaultdict(int)
        """Per model (empty: none was found) and status."""
        self.seconds: dict[str, list[int]] = {}
        """Per model: answers per bucket, the last one without a bound."""
        self.seconds_sum: defaultdict[str, float] = defaultdict(float)
        self.bytes_in: defaultdict[str, int] = defaultdict(int)
        self.cancelled: defaultdict[str, int] = defaultdict(int)
        self.stored = 0
        """Bodies that went into the store."""
        self.stored_bytes = 0

    def answered(self, model: str, status: int, seconds: float, size: int) -> None:
        """A request has its answer; ``seconds`` until its end."""
        self.requests[model, status] += 1
        self.bytes_in[model] += size
        counts = self.seconds.get(model)
        if counts is None:
            counts = self.seconds[model] = [0] * (len(BUCKETS) + 1)
        counts[bisect_left(BUCKETS, seconds)] += 1
        self.seconds_sum[model] += seconds

    def page(self, waiting: int, connected: bool, unexpected: int) -> bytes:
        """The text format. ``waiting``: requests under way; ``unexpected``: frames that nobody waited for."""
        lines: list[str] = []

        def add(name: str, kind: str, told: str, values: list[tuple[str, int]]) -> None:
            full = f"fleetctl_gateway_{name}"
            lines.extend((f"# HELP {full} {told}", f"# TYPE {full} {kind}"))
            lines.extend(f"{full}{labels} {value}" for labels, value in values)

        add("connected", "gauge", "Whether NATS is connected.", [("", int(connected))])
        add("requests_under_way", "gauge", "Requests that wait for their answer.", [("", waiting)])
        requests = [(_labels(model=model, code=str(code)), n) for (model, code), n in sorted(self.requests.items())]
        add("requests_total", "counter", "Answers by model and status.", requests)
        add("received_bytes_total", "counter", "Bytes of bodies.", _per_model(self.bytes_in))
        add("cancelled_total", "counter", "Requests whose client went away.", _per_model(self.cancelled))
        add("bodies_total", "counter", "Bodies that went into the store.", [("", self.stored)])
        add("bodies_bytes_total", "counter", "Bytes of those.", [("", self.stored_bytes)])
        add("unexpected_frames_total", "counter", "Pieces of answers that nobody waited for.", [("", unexpected)])
        name = "fleetctl_gateway_request_seconds"
        lines += [f"# HELP {name} Seconds from a request's head to the end of its answer.", f"# TYPE {name} histogram"]
        for model, counts in sorted(self.seconds.items()):
            total = 0
            for bound, count in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
                total += count
                lines.append(f"{name}_bucket{_labels(model=model, le=bound)} {total}")
            lines.append(f"{name}_sum{_labels(model=model)} {self.seconds_sum[model]:.6f}")
            lines.append(f"{name}_count{_labels(model=model)} {total}")
        return ("\n".join(lines) + "\n").encode()


def _per_model(values: dict[str, int]) -> list[tuple[str, int]]:
    return [(_labels(model=model), value) for model, value in sorted(values.items())]


def _labels(**labels: str) -> str:
    told = (f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return "{" + ",".join(told) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
