"""The state of the fleet as people read it: one screen."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fleetctl.cli.output import hang
from fleetctl.cli.show_history import when
from fleetctl.cli.show_status_pool import show_pool_of
from fleetctl.facts.assess import Assessment, EngineState
from fleetctl.facts.operations import GUARDED, STAYING
from fleetctl.facts.types import MoveFacts
from fleetctl.run.overview import Overview
from fleetctl.spec.units import size
from fleetctl.watch.sample import Copy, Figures, Sample

_GOOD = {"active", "up", "pool"}
_UNKNOWN = "?"


def show_status(seen: Overview, out: Console, *, every: bool) -> None:
    """Print layout, engines, boxes, traffic, what is wrong, and what was last changed.

    With ``every`` what is wrong because a move was cut off is listed, and not only counted.
    """
    found = seen.found
    layout = found.layout or "none of fleetctl"
    number = f", generation {found.generation}" if found.generation is not None else ""
    out.print(f"[bold]{escape(found.fleet)}[/]: layout [bold]{escape(layout)}[/]{number}")
    if found.engines:
        _show_engines(seen, out)
    _show_boxes(seen, out)
    _show_move(found, out, every=every)
    for note in found.notes:
        hang(out, f"[yellow]note[/]: {escape(note)}", 6)
    for problem in found.problems:
        hang(out, f"[red]wrong[/]: {escape(problem)}", 7)
    if found.last is not None and found.last.end is not None:
        hang(out, f"[dim]last change: {_last(found.last)}[/]", 13)
    if found.healthy():
        out.print("[green]nothing is wrong[/]")


def _show_engines(seen: Overview, out: Console) -> None:
    found, sample = seen.found, seen.sample
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("engine", "unit", "proxy"):
        table.add_column(name, overflow="fold")
    for name in ("runs", "waits", "tokens/s", "cache"):
        table.add_column(name, justify="right", no_wrap=True)
    copies = {copy.id: copy for copy in sample.copies} if sample is not None else {}
    pooled = {engine.id for engine in sample.pool.engines} if sample is not None and sample.pool is not None else set()
    shown = [engine for engine in found.engines if engine.id not in pooled]
    for engine in shown:
        told = [_coloured(word) for word in (engine.state, engine.server)]
        on = "" if engine.id.endswith(f"@{engine.boxes[0]}") else f" on {', '.join(engine.boxes)}"
        table.add_row(escape(engine.id + on), *told, *_figures(engine, copies.get(engine.id)))
    if sample is not None and len(shown) > 1:
        unknown = f", {len(sample.unknown)} unknown" if sample.unknown else ""
        table.add_row(f"[dim]total{unknown}[/]", "", "", *_told(sample.total), "")
    if shown:
        out.print(table)
    if sample is not None and sample.pool is not None:
        show_pool_of(sample.pool, {engine.id: engine for engine in found.engines}, out)
    for engine in found.engines:
        if engine.cache is not None and engine.cache_expected:
            out.print(f"[dim]{escape(engine.id)}: {engine.cache:,} tokens of cache{_off(engine)}[/]")
    for model, names in found.adapters.items():
        hang(out, f"adapters of {escape(model)}: {escape(', '.join(names))}", 2)
    _show_proxy(found, sample, out)


def _coloured(word: str) -> str:
    style = "green" if word in _GOOD else "yellow" if word in ("unknown", "loading", "drained", "not loaded") else "red"
    return f"[{style}]{escape(word)}[/]"


def _figures(engine: EngineState, copy: Copy | None) -> tuple[str, ...]:
    """What the engine itself says; what it does not say is unknown, whatever the proxy counts."""
    if copy is None or not copy.known or engine.state != "active":  # another engine may answer at its port
        return (_UNKNOWN,) * 4
    usage = copy.figures.cache_usage
    share = _UNKNOWN if usage is None else f"{100 * usage:.0f} %"
    return (*_told(copy.figures), f"{share} of {_thousands(engine.cache)}" if engine.cache else share)


def _thousands(tokens: int) -> str:
    return f"{tokens / 1000:,.0f}k" if tokens >= 10_000 else str(tokens)


def _told(figures: Figures) -> tuple[str, ...]:
    values = (figures.running, figures.waiting, figures.generation_rate)
    return tuple(_UNKNOWN if value is None else f"{value:.0f}" for value in values)


def _show_proxy(found: Assessment, sample: Sample | None, out: Console) -> None:
    proxy = sample.proxy if sample is not None else None
    if proxy is not None and proxy.running is not None:
        wait = f", [yellow]{proxy.waiting} wait in its queue[/]" if proxy.waiting else ""
        wait += f", [yellow]{proxy.held} are held until an engine takes them[/]" if proxy.held else ""
        rate = "" if proxy.request_rate is None else f", {proxy.request_rate:.0f} new in the last second"
        out.print(f"proxy: {proxy.running} requests on engines{wait}{rate}")
    elif found.waiting:
        out.print(f"{found.waiting} requests wait in the proxy's shared queue")
    if found.address is not None:
        where = f"on [bold]{escape(', '.join(found.address_on))}[/]" if found.address_on else "[red]on no box[/]"
        out.print(f"clients use {escape(found.address)}, which is {where}")


def _show_boxes(seen: Overview, out: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("box", "memory", "engines may take", "available", "lowest"):
        table.add_column(name, justify="left" if name == "box" else "right")
    for box, memory in seen.memory.items():
        sizes = (memory.total, memory.engines, memory.available, memory.lowest)
        table.add_row(escape(box), *(_UNKNOWN if one is None else size(one) for one in sizes))
    for box in seen.found.unreachable:
        table.add_row(f"[red]{escape(box)}[/]", *[_UNKNOWN] * 4)
    out.print(table)


def _show_move(found: Assessment, out: Console, *, every: bool) -> None:
    if found.lock is not None:
        hang(out, f"[yellow]held[/]: {escape(str(found.lock))}", 6)
    move = found.unfinished
    if move is None:
        return
    told = f"{escape(f'{move.operation} {move.road}'.strip())} by {escape(move.who)}"
    if found.under_way():
        more = "" if move.operation in GUARDED else "; what is not right yet is not listed meanwhile"
        hang(out, f"[cyan]under way[/]: {told}{more}", 11)
        return
    hang(out, f"[bold yellow]cut off[/]: {told}; {move.ways}", 9)
    if every:
        for consequence in found.consequences:
            hang(out, f"[dim]so[/]: {escape(consequence)}", 4)
    elif found.consequences:
        number = len(found.consequences)
        told = "one thing is" if number == 1 else f"{number} things are"
        hang(out, f"[dim]so[/]: {told} not as the layout wants until then; `fleetctl status --all` lists them", 4)


def _last(move: MoveFacts) -> str:
    between = " in " if move.operation in STAYING else " "
    what = move.operation + (between + escape(move.road) if move.road else "")
    result = (move.end or {}).get("result", "")
    return f"{what} by {escape(move.who)}, {when(move.started)}, {result}; `fleetctl history` shows more"


def _off(engine: EngineState) -> str:
    """How far the plan's figure for the cache was from the engine's own."""
    if engine.cache is None or not engine.cache_expected:
        return ""
    return f" (the plan said {engine.cache_expected:,}, {100 * (engine.cache_expected / engine.cache - 1):+.1f} %)"
