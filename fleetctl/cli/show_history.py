"""Changes of the fleet as people read them."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from fleetctl.cli.output import hang
from fleetctl.facts.history import GenerationTold
from fleetctl.facts.operations import STAYING, road
from fleetctl.run.history import CUT_OFF, DONE, FAILED, UNDER_WAY, UNDONE, Change, StepTold
from fleetctl.spec.units import seconds

_STYLES = {DONE: "green", UNDONE: "yellow", FAILED: "red", CUT_OFF: "bold yellow", UNDER_WAY: "cyan"}
_INDENT = 18  # as wide as a time and two spaces


def when(at: float) -> str:
    """A time as people read it, by the clock of this machine."""
    return _local(at, "%Y-%m-%d %H:%M", "at no known time")


def _local(at: float, form: str, unknown: str) -> str:
    try:
        return time.strftime(form, time.localtime(at))
    except (ValueError, OverflowError, OSError):  # what a box keeps of it was damaged
        return unknown


def show_history(found: list[Change], out: Console) -> None:
    """Print changes, each with who did it and how it ended."""
    if not found:
        out.print("nothing was changed yet, as far as the boxes remember")
    for change in found:
        if change.by_guard:
            unit = f" {escape(change.unit)}" if change.unit else ""
            why = f": {escape(change.why)}" if change.why else ""
            box = escape(", ".join(change.boxes))
            hang(out, f"{when(change.at)}  [magenta]guard on {box}[/]: {escape(change.operation)}{unit}{why}", _INDENT)
            continue
        style = _STYLES.get(change.result, "")
        hang(
            out,
            f"{when(change.at)}  {escape(what(change))}: [{style}]{change.result}[/]{escape(_measured(change))}",
            _INDENT,
        )
        ended = f", ended by {change.ended_by}" if change.ended_by else ""
        command = f": {change.command}" if change.command else ""
        hang(out, Text(" " * _INDENT + f"by {change.who}{ended}{command}  ({change.move})", style="dim"), _INDENT + 2)
        if change.why:
            first, *more = change.why.splitlines()
            hang(out, Text(" " * _INDENT + f"why: {first}{' …' if more else ''}"), _INDENT + 5)


def what(change: Change) -> str:
    """A move in a few words: operation, layouts and generation."""
    if not road(change.operation, change.from_layout, change.to_layout):
        return change.operation
    if change.operation in STAYING:
        return f"{change.operation} in {_place(change.to_layout, change.generation)}"
    origin = _place(change.from_layout, change.from_generation)
    return f"{change.operation} {origin} → {_place(change.to_layout, change.generation)}"


def _place(layout: str | None, generation: int | None) -> str:
    return (layout or "nothing") + (f" ({generation})" if generation is not None else "")


def _measured(change: Change) -> str:
    parts = [] if change.took is None else [f"in {seconds(change.took)}"]
    if change.gap:
        parts.append(f"{seconds(change.gap)} without an engine, requests waited")
    if change.cut:
        parts.append(f"{change.cut} requests cut")
    alike: dict[str, list[str]] = {}
    for engine, told in change.scores.items():
        alike.setdefault(told, []).append(engine)
    scores = [f"; {told} ({', '.join(engines)})" for told, engines in alike.items()]
    return (f" {', '.join(parts)}" if parts else "") + "".join(scores)


def show_generations(kept: Mapping[int, GenerationTold], current: int | None, out: Console) -> None:
    """Print which generations there are to go back to."""
    if not kept:
        return
    told = [
        f"{number} {told.layout or 'nothing'}" + (" (live)" if number == current else "")
        for number, told in sorted(kept.items(), reverse=True)
    ]
    hang(out, Text(f"generations kept: {', '.join(told)}"), 18)
    if any(number != current for number in kept):
        hang(out, "`fleetctl rollback --to N` goes back to one; `fleetctl history MOVE` shows the steps of a move", 2)


def show_steps(change: Change, box: str, steps: list[StepTold], out: Console) -> None:
    """Print one move with its steps."""
    show_history([change], out)
    out.print(f"[dim]journal on {escape(box)}[/]")
    marks = {DONE: "[green]✓[/]", UNDONE: "[yellow]↶[/]", "begun": "[red]✗[/]"}
    stage = None
    for step in steps:
        if step.stage != stage:
            stage = step.stage
            out.print(f"[bold cyan]{escape(stage)}[/]")
        took = "" if step.took is None else f"  [dim]{seconds(step.took)}[/]"
        at = "        " if step.began is None else _local(step.began, "%H:%M:%S", "        ")
        hang(out, f"  {marks.get(step.state, '[dim]·[/]')} {at}  {escape(step.summary)}{took}", 14)
