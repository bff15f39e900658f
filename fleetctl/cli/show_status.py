"""The state of the fleet as people read it: one screen."""

from __future__ import annotations

import time

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fleetctl.facts.assess import Assessment, EngineState
from fleetctl.spec.units import gib


def show_status(found: Assessment, out: Console) -> None:
    """Print layout, engines, boxes, what is wrong, and what was last changed."""
    layout = found.layout or "none of fleetctl"
    number = f", generation {found.generation}" if found.generation is not None else ""
    out.print(f"[bold]{escape(found.fleet)}[/]: layout [bold]{escape(layout)}[/]{number}")
    if found.engines:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("engine", "boxes", "unit", "proxy", "running", "waiting"):
            table.add_column(name, justify="right" if name in ("running", "waiting") else "left")
        for engine in found.engines:
            unit = f"[green]{engine.state}[/]" if engine.state == "active" else f"[red]{escape(engine.state)}[/]"
            server = f"[green]{engine.server}[/]" if engine.server == "up" else f"[red]{escape(engine.server)}[/]"
            boxes = ", ".join(engine.boxes)
            table.add_row(escape(engine.id), boxes, unit, server, str(engine.running), str(engine.queued))
        out.print(table)
        for engine in found.engines:
            if engine.cache is not None:
                out.print(f"[dim]{escape(engine.id)}: {engine.cache:,} tokens of cache{_off(engine)}[/]")
        if found.waiting:
            out.print(f"{found.waiting} requests wait in the proxy's shared queue")
    if found.address is not None:
        where = f"on [bold]{escape(', '.join(found.address_on))}[/]" if found.address_on else "[red]on no box[/]"
        out.print(f"clients use {escape(found.address)}, which is {where}")
    for box, available in found.available.items():
        out.print(f"[dim]{escape(box)}: {gib(available)} available[/]")
    if found.lock is not None:
        out.print(f"[yellow]held[/]: {escape(str(found.lock))}")
    if found.unfinished is not None:
        move = found.unfinished
        told = f"{move.operation} {move.from_layout or 'nothing'} → {move.to_layout or 'nothing'} by {escape(move.who)}"
        if found.under_way():
            out.print(f"[cyan]under way[/]: {told}; what is not right yet is not listed meanwhile")
        else:
            out.print(f"[bold yellow]cut off[/]: {told}; {move.ways}")
    for note in found.notes:
        out.print(f"[yellow]note[/]: {escape(note)}")
    for problem in found.problems:
        out.print(f"[red]wrong[/]: {escape(problem)}")
    if found.last is not None and found.last.end is not None:
        move = found.last
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(move.started))
        out.print(
            f"[dim]last change: {move.operation} to {escape(move.to_layout or 'nothing')} by {escape(move.who)}, "
            f"{at}, {found.last.end.get('result', '')}[/]"
        )
    if found.healthy():
        out.print("[green]nothing is wrong[/]")


def _off(engine: EngineState) -> str:
    """How far the plan's figure for the cache was from the engine's own."""
    if engine.cache is None or not engine.cache_expected:
        return ""
    return f" (the plan said {engine.cache_expected:,}, {100 * (engine.cache_expected / engine.cache - 1):+.1f} %)"
