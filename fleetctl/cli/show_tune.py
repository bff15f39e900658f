"""Advice for the proxy's settings as people read it, and as programs do."""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fleetctl.proxy.tune.advice import Advice
from fleetctl.proxy.tune.figures import Measured
from fleetctl.run.tuning import Gathered


def summary(measured: Measured) -> dict[str, Any]:
    """How much there was to measure: counts, and the epoch seconds between which the log lies."""
    log = measured.log
    return {
        "requests": log.requests,
        "lines": log.lines,
        "oldest": log.oldest,
        "newest": log.newest,
        "starts": sum(len(loads) for loads in measured.loads.values()),
        "checks": measured.checks.took.count if measured.checks else 0,
        "backends": {name: _figures(requests.model_dump()) for name, requests in log.backends.items()},
    }


def _figures(told: dict[str, Any]) -> dict[str, Any]:
    """A backend's counts, and of its durations how many there were and the longest in seconds."""
    return {
        key: {"count": sum(count for _, count in value["buckets"]), "longest": value["longest"] / 1000}
        if isinstance(value, dict) and "buckets" in value
        else value
        for key, value in told.items()
    }


def event(advice: Advice) -> dict[str, Any]:
    """One advice as JSON has it."""
    return {**asdict(advice), "changes": advice.changes}


def show_tune(found: Gathered, advices: list[Advice], since: float, out: Console) -> None:
    """Print what was measured, a table of the settings, and what is to be known about it."""
    told = summary(found.measured)
    days = f"{since / 86400:.3g} days" if since >= 86400 else f"{since / 3600:.3g} h"
    begin = (
        f" (the log begins {time.strftime('%Y-%m-%d %H:%M', time.localtime(told['oldest']))})" if told["oldest"] else ""
    )
    text = f"layout {found.layout}: in the last {days} {_many(told['requests'], 'request')}{begin}, "
    text += f"{_many(told['starts'], 'start')} of engines, {_many(told['checks'], 'health check')}"
    out.print(text, markup=False)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1, 0, 0))
    for name in ("setting", "now", "advised"):
        table.add_column(name, no_wrap=True)
    table.add_column("why", overflow="fold")
    for advice in advices:
        table.add_row(advice.setting, advice.now, _advised(advice), _why(advice))
    out.print(table)
    for note in found.notes:
        out.print(Text("note", style="yellow").append(f": {note}", style="default"))


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _advised(advice: Advice) -> Text:
    if advice.advised is None:
        return Text("?", style="dim")
    return Text(advice.advised, style="bold yellow" if advice.changes else "green")


def _why(advice: Advice) -> Text:
    if advice.missing is not None:
        return Text(f"too little is known; missing: {advice.missing}", style="dim")
    return Text(advice.why).append(f"\n{advice.outage}", style="dim")


def difference(name: str, before: str, after: str, what: str = "advised") -> str:
    """The unified diff of a file."""
    was, will = ([*_ended(text)] for text in (before, after))
    return "".join(difflib.unified_diff(was, will, name, f"{name} ({what})"))


def _ended(text: str) -> Iterator[str]:
    """The lines of a text, each with one kind of line break."""
    yield from (f"{line}\n" for line in text.replace("\r\n", "\n").removesuffix("\n").split("\n"))


def show_difference(diff: str, out: Console) -> None:
    """Print a diff in its usual colours."""
    for line in diff.splitlines():
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "default")
        out.print(Text(line, style=style))
