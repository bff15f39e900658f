"""Ready entries for pools in a terminal: a line for each, or one with its evidence."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fleetctl.cli.output import hang
from fleetctl.profiles.entry import Entry
from fleetctl.spec.units import size


def show_entries(entries: Iterable[Entry], out: Console) -> None:
    """Print a table: what each does, with what, and what it takes."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for title in ("for a pool", "task", "runtime", "memory", "what it does"):
        table.add_column(title, no_wrap=title != "what it does", justify="right" if title == "memory" else "left")
    for one in entries:
        row = (one.entry, one.task, one.model.runtime, size(one.place.memory), one.does)
        table.add_row(*map(Text, row))
    out.print()
    out.print(table)


def show_entry(entry: Entry, out: Console) -> None:
    """Print an entry as fleet.yaml has it, and where each value is from."""
    out.print(Text(entry.entry, style="bold").append(f"  {entry.date}, {entry.does}", "dim"))
    out.print()
    out.print(Text(entry.text().rstrip()))
    out.print()
    hang(out, Text("BOX, launch: and weights: are yours: where the engine and the model are on your boxes", "dim"), 0)
    for evidence in entry.evidence:
        out.print()
        out.print(Text(", ".join(evidence.about), style="bold"))
        hang(out, Text(f"    {evidence.how}: {' '.join(evidence.told.split())}"), 4)
