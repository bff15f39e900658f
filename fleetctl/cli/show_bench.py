"""Figures of a load as people read them, and as programs do."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fleetctl.bench.target import Measured


def event(measured: Measured, **more: Any) -> dict[str, Any]:
    """All figures of one load. Times are seconds."""
    seen = measured.gauges
    engine = {
        "running_max": max(seen.running, default=None),
        "waiting_mean": sum(seen.waiting) / len(seen.waiting) if seen.waiting else None,
        "cache_max": max(seen.cache, default=None),
    }
    return {**more, **asdict(measured.summary), "engine": engine}


def show_bench(told: dict[str, Any], out: Console) -> None:
    """Print the figures; that the generator was too slow comes first."""
    warn(told["generator"], out)
    load = f"{told['concurrency']} at once" if told["concurrency"] else "at given times"
    load = f"{told['rate']:g} requests/s" if told["rate"] else load
    out.print(f"{told['what']}: {told['model']}, {told['mix']}, {load}, {told['seconds']:.0f} s", markup=False)
    out.print(
        f"{told['requests_per_minute']:.1f} requests/min, {told['tokens_out_rate']:.1f} tokens/s out, "
        f"{told['tokens_in_rate']:.1f} tokens/s in; {told['answered']} of {told['requests']} answered",
        markup=False,
    )
    if not told["requests"]:
        out.print(f"no answer came to its end in {told['seconds']:.0f} s: take a longer --duration", style="yellow")
        return
    if told["good_share"] is not None:
        out.print(
            f"within the target: {told['good_share']:.1%}, {told['good_per_minute']:.1f} requests/min", markup=False
        )
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("seconds")
    for name in ("p50", "p90", "p99", "max", "mean"):
        table.add_column(name, justify="right")
    for key, name in (("ttft", "first token"), ("tpot", "each further token"), ("total", "whole answer")):
        if told[key]:
            table.add_row(name, *(f"{told[key][column]:.3f}" for column in ("p50", "p90", "p99", "max", "mean")))
    out.print(table)
    lengths = [f"{told[key]['mean']:.0f} {name}" for key, name in _LENGTHS if told[key]]
    if lengths:
        out.print(f"tokens a request, mean: {', '.join(lengths)}", markup=False)
    engine = told["engine"]
    if engine["running_max"] is not None:
        waiting = f", {engine['waiting_mean']:.1f} waiting in it" if engine["waiting_mean"] is not None else ""
        cache = f", {engine['cache_max']:.0%} of its cache in use at most" if engine["cache_max"] is not None else ""
        out.print(f"the engine ran {engine['running_max']:.0f} at once at most{waiting}{cache}", markup=False)
    for kind, count in told["errors"].items():
        out.print(Text("error", style="bold red").append(f": {kind}: {count}", style="default"))


_LENGTHS = (("prompt_tokens", "in"), ("answer_tokens", "out"))


def warn(generator: dict[str, Any] | None, out: Console) -> None:
    """Say that the generator itself did not keep up."""
    if generator is not None and generator["saturated"]:
        told = f": the generator did not keep up: {'; '.join(generator['why'])}. Latencies are partly its own"
        out.print(Text("warning", style="yellow").append(told, style="default"))
