"""LoRA adapters as people read them."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fleetctl.cli.output import hang
from fleetctl.cli.show_history import when
from fleetctl.run.adapters_seen import AdaptersSeen


def show_adapters(seen: AdaptersSeen, out: Console) -> None:
    """Print adapters, the copies that have each, and what is wrong."""
    if not any(seen.adapters.values()):
        out.print("no adapters; `fleetctl lora push DIR` brings one")
    else:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("adapter", "model", "rank", "MB", "copies", "brought"):
            table.add_column(name, justify="right" if name in ("rank", "MB", "copies") else "left")
        for model, entries in seen.adapters.items():
            copies = [loaded for of, loaded in seen.engines.values() if of == model]
            for name, one in sorted(entries.items()):
                have = sum(loaded is not None and name in loaded for loaded in copies)
                by = f"{when(one.at)} by {one.by}"
                row = (name, model, str(one.rank), f"{one.size / 1e6:.1f}", f"{have} of {len(copies)}", by)
                table.add_row(*map(escape, row))
        out.print(table)
    for engine, (_, loaded) in seen.engines.items():
        if loaded is None:
            hang(out, f"[yellow]note[/]: {escape(engine)} does not serve: it loads its adapters when it starts", 6)
    for problem in seen.problems:
        hang(out, f"[red]wrong[/]: {escape(problem)}", 7)
