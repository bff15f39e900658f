"""Settings that were tried, in a terminal: what each candidate gave, and what can be told from noise."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fleetctl.bench.report import Tried
from fleetctl.bench.settings import Says, as_record

_STYLES = {Says.BETTER: "bold green", Says.WORSE: "red", Says.NOT: "yellow", Says.LESS: "green"}


def event(told: Tried) -> dict[str, Any]:
    """One copy's search, as JSON has it."""
    return {
        "engine": told.what,
        "mix": told.mix,
        "at": told.at,
        "concurrency": told.concurrency,
        **as_record(told.outcome),
        "measured": list(told.measured),
    }


def show_settings(told: Tried, out: Console) -> None:
    """Print a row for each candidate: tokens/s beside those of what is now, the difference, and the verdict."""
    out.print(f"{told.what}: settings, mix {told.mix}, {told.concurrency} at once", markup=False)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("setting", "tokens/s", "now", "difference", "first token s", "verdict"):
        table.add_column(name, justify="left" if name in ("setting", "verdict", "difference") else "right")
    for one in told.outcome.verdicts:
        numbers = ("" if value is None else f"{value:.1f}" for value in (one.rate, one.present))
        change = "" if one.change is None else str(one.change)
        first = "" if one.ttft is None else f"{one.ttft:.2f}"
        verdict = Text(one.says.value, style=_STYLES.get(one.says, "default"))
        verdict.append(f": {one.why}" if one.why else "", "default")
        table.add_row(f"{one.setting} {one.value:g}", *numbers, change, first, verdict)
    out.print(table)
    taken = told.taken()
    words = ", ".join(f"{name} {value:g}" for name, value in taken.items()) or "everything stays as it is"
    out.print(Text(words, style="bold").append(f"  ({told.outcome.starts} starts)", "dim"))
