"""A search for the knee in a terminal: throughput and latency against concurrency, and the answer."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fleetctl.bench.knee import Kind
from fleetctl.bench.report import Told, by_concurrency
from fleetctl.cli.show_bench import warn

_WIDE = 32  # columns of the longest bar
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def event(told: Told) -> dict[str, Any]:
    """One engine's search, as JSON has it."""
    return {
        "engine": told.what,
        "model": told.model,
        "mix": told.mix,
        "at": told.at,
        "answer": asdict(told.tuned.answer),
        "points": [asdict(point) for point in told.tuned.points],
        "requests": told.tuned.requests,
        "generator": asdict(told.tuned.generator) if told.tuned.generator else None,
    }


def show_knee(told: Told, out: Console) -> None:
    """Print a bar for the throughput at each concurrency that was measured, latencies beside it, and the answer."""
    answer, rows = told.tuned.answer, by_concurrency(told.tuned.points)
    warn(asdict(told.tuned.generator) if told.tuned.generator else None, out)
    most = max(throughput for _, throughput, *_ in rows) or 1.0
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("at once", "tokens/s", "", "first token s", "whole answer s", "measured"):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    for concurrency, throughput, first, total, count in rows:
        chosen = concurrency == answer.concurrency
        style = "bold green" if chosen else "default"
        times = ("" if value is None else f"{value:.2f}" for value in (first, total))
        table.add_row(
            Text(str(concurrency), style=style),
            Text(f"{throughput:.1f}", style=style),
            Text(bar(throughput / most), style="green" if chosen else "cyan"),
            *times,
            str(count),
        )
    out.print(f"{told.what}: {told.model}, mix {told.mix}", markup=False)
    out.print(table)
    line = Text(f"{answer.concurrency} at once", style="bold").append(
        f" ({answer.kind.value}): {answer.why}", "default"
    )
    out.print(line)
    doubt = f"{answer.sure:.0%} of what is possible after {len(told.tuned.points)} measurements agrees"
    out.print(Text(f"{doubt}; {told.tuned.requests} requests were counted", style="dim"))
    if answer.kind is Kind.LIMIT:
        flag = f"arguments: [--max-num-seqs, {4 * answer.concurrency}]"
        way = f"to look beyond, let the engine run more: {flag} in fleet.yaml, `fleetctl apply`, and tune again"
        out.print(way, markup=False)
    if answer.kind is Kind.NONE_IN_RANGE:
        out.print(f"to look beyond: --most {4 * answer.concurrency}", markup=False)


def bar(share: float) -> str:
    """A bar of a share of the longest, exact to an eighth of a column."""
    eighths = round(8 * _WIDE * max(0.0, min(1.0, share)))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
