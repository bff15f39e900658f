"""``fleetctl lab demo``."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fleetctl.cli.options import Debug

if TYPE_CHECKING:
    from rich.console import Console

    from fleetctl.cli.live import LiveView
    from fleetctl.lab.demo import Report
    from fleetctl.lab.traffic import Traffic

Root = Annotated[Path, typer.Option("--dir", envvar="FLEETCTL_LAB", help="Folder of the lab; each has a network.")]
Rate = Annotated[float, typer.Option(min=0.5, max=50, help="Requests a second, all the time.")]
Timeline = Annotated[bool, typer.Option("--timeline", help="Show where the time without answers went, step by step.")]

DEFAULT_DIR = Path("/var/lib/fleetctl-lab")
TELL_EVERY = 2.0  # seconds between two lines about the traffic


def demo(directory: Root = DEFAULT_DIR, rate: Rate = 8.0, timeline: Timeline = False, debug: Debug = False) -> None:
    """Two boxes, traffic, a move to replicas and back: what it costs the clients. The last line is JSON."""
    from fleetctl.cli.output import console
    from fleetctl.lab.engines import bring_up
    from fleetctl.lab.lab import Lab

    out = console()
    lab = Lab(directory)
    _heading(out, f"boxes with a stand-in engine, in {lab.root}")
    bring_up(lab, max(2, len(lab.boxes())), "standin", lambda text: out.print(f"  {text}", markup=False))
    told = play(lab.fleet_file, out, rate=rate, with_timeline=timeline)
    here = "" if directory == DEFAULT_DIR else f" --dir {directory}"
    out.print(
        f"\nThe lab stays up. Look around: fleetctl status -f {lab.fleet_file}\n"
        f"Remove all of it:              fleetctl lab down{here}\n",
        markup=False,
    )
    print(told.json(), flush=True)
    if told.exit_code:
        raise typer.Exit(told.exit_code)


def play(fleet_file: Path, out: Console, *, rate: float, with_timeline: bool) -> Report:
    """Move the fleet to replicas and back under traffic, showing it all. Raises FleetError when it cannot begin."""
    from fleetctl.errors import FleetError
    from fleetctl.lab.demo import report, steady_traffic, to_split, under_traffic

    def say(text: str) -> None:
        out.print(f"  {text}", markup=False)

    _heading(out, "one engine, split across the boxes")
    with _Shown(out) as shown:
        first = to_split(fleet_file, say, shown.hear)
    if not first.done:
        raise FleetError(
            f"the split layout could not be brought up: {first.error}", hint=f"fleetctl status -f {fleet_file}"
        )
    _heading(out, f"traffic through the proxy: {rate:g} requests/s, every second one streamed, none is ever sent twice")
    with steady_traffic(fleet_file, rate) as traffic, _telling(traffic, say), _Shown(out) as shown:
        moves = under_traffic(fleet_file, traffic, lambda text: _heading(out, text), shown.hear)
    told = report(moves, traffic.requests())
    _show(told, out, with_timeline=with_timeline)
    return told


def _heading(out: Console, text: str) -> None:
    from rich.markup import escape

    out.print(f"\n[bold cyan]▌[/] [bold]{escape(text)}[/]")


class _Shown:
    """The events of moves, as the live view of the command itself shows them."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._view: LiveView | None = None

    def __enter__(self) -> _Shown:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def hear(self, event: dict[str, Any]) -> None:
        from fleetctl.cli.live import LiveView
        from fleetctl.plan.types import Plan

        if event["type"] == "plan":
            self._end()
            self._view = LiveView(Plan.model_validate(event["plan"]), self._out)
            self._view.__enter__()
        elif event["type"] == "step" and self._view is not None:
            self._view.hear(event)
        elif event["type"] == "move":
            self._end()
            if event["state"] == "nothing":
                self._out.print(f"  the fleet is in {event['to']} already", markup=False)
        elif event["type"] in ("note", "error"):
            self._out.print(f"  {event.get('text') or event['message']}", markup=False)

    def _end(self) -> None:
        if self._view is not None:
            self._view.__exit__(None, None, None)
            self._view = None


@contextmanager
def _telling(traffic: Traffic, say: Any) -> Iterator[None]:
    """Say every two seconds where the requests are."""
    over = threading.Event()

    def tell() -> None:
        while not over.wait(TELL_EVERY):
            now = traffic.counts()
            waiting = f", {now.waiting} waiting" if now.waiting else ""
            failed = f", {now.failed} FAILED" if now.failed else ", none failed"
            say(f"traffic: {now.sent} sent, {now.answered} answered{waiting}{failed}")

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _show(told: Report, out: Console, *, with_timeline: bool) -> None:
    from rich.table import Table

    from fleetctl.lab.demo import timeline

    table = Table(title="What the moves cost the clients", title_justify="left", title_style="bold", box=None)
    table.add_column("move to")
    for name in ("requests", "failed", "held", "no answers", "engine stop", "engine load", "overhead", "recovery"):
        table.add_column(name, justify="right")
    for one in told.figures:
        times = (one.gap_s, one.engine_stop_s, one.engine_load_s, one.overhead_s, one.recovery_s)
        cells = ["-" if value is None else f"{value:.2f} s" for value in times]
        table.add_row(one.to, str(one.requests), str(one.failed), str(one.held), *cells)
    out.print()
    out.print(table)
    out.print(
        "[dim]held: waited in the proxy while no engine was up. overhead: time without answers, less the engines' own\n"
        "stop and load. recovery: from the engine being ready until the first answer through the proxy.[/]"
    )
    for move in told.moves:
        if move.error:
            out.print(f"[bold red]the move to {move.to} failed:[/] ", end="")
            out.print(move.error, markup=False)
        if with_timeline:
            out.print(f"\n[bold]the gap on the way to {move.to}[/]")
            for at, what in timeline(move, told.first_answer(move)):
                out.print(f"  {at:7.2f} s  {what}", markup=False)
    for request in told.failed:
        kind = "streamed request" if request.streamed else "request"
        out.print(f"[bold red]failed:[/] {kind} {request.number} sent at {request.start:.3f}: ", end="")
        out.print(str(request.error), markup=False)
