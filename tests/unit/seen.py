"""Samples of a made-up office, as a watcher would tell them."""

from __future__ import annotations

import math
from dataclasses import replace

from fleetctl.watch.sample import BoxSample, Copy, Counts, Figures, ProxySample, Sample

GIB = 1024**3


def figures(tokens: float = 100.0, waiting: float = 0.0) -> Figures:
    return Figures(
        running=11,
        waiting=waiting,
        prompt_rate=1204.0,
        generation_rate=tokens,
        request_rate=13.4,
        first_token=0.534,
        cache_usage=0.41,
        prefix_hit_rate=0.723,
        acceptance=0.805,
    )


def copy_on(box: str, **more: object) -> Copy:
    copy = Copy(f"replicas/qwen@{box}", "qwen", (box,), "UP", "active", figures(), Counts(generation_tokens=1e6))
    return replace(copy, **more)  # type: ignore[arg-type]


def sample(*copies: Copy, at: float = 1796046000.0, **more: object) -> Sample:
    """The office with these copies (two by default); the total is over those that are known."""
    those = copies or (copy_on("spark1"), copy_on("spark2"))
    known = [copy.figures for copy in those if copy.known]
    summed = ("running", "waiting", "prompt_rate", "generation_rate", "request_rate")
    sums = {name: sum(getattr(one, name) or 0.0 for one in known) for name in summed}
    total = replace(figures(), **sums) if known else Figures()
    made = Sample(
        at=at,
        fleet="office",
        layout="replicas",
        generation=12,
        copies=those,
        total=total,
        boxes={
            "spark1": BoxSample(int(121.7 * GIB), int(31.2 * GIB), 0, 0.0, False),
            "spark2": BoxSample(int(121.7 * GIB), int(24.9 * GIB), int(0.4 * GIB), 12.5, False),
        },
        proxy=ProxySample(3, 22, 4),
    )
    return replace(made, **more)  # type: ignore[arg-type]


def minutes(number: int = 120) -> list[Sample]:
    """An afternoon's traffic: two copies, the second of which was away for a while."""
    told = []
    for moment in range(number):
        one = 95 + 30 * math.sin(moment / 9) + 6 * math.sin(moment * 1.7)
        two = 88 + 24 * math.sin(moment / 9 + 1) + 7 * math.sin(moment * 1.3)
        away = number * 0.45 < moment < number * 0.55
        second = copy_on("spark2", figures=figures(two), server="UP")
        if away:
            second = replace(second, why="nothing to read at 10.0.0.2:8000: Connection refused", unit="activating")
        told.append(sample(copy_on("spark1", figures=figures(one, 2)), second, at=1796046000.0 + 2 * moment))
    return told
