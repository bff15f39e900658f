"""Gates that failed in a move, with what was asked and answered, as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from fleetctl.facts.history import ExchangeTold, GateFailure
from fleetctl.proxy.lint.findings import printable
from fleetctl.spec.units import seconds

LINES = 12  # of a request or a response that are shown; the file has all that was kept
WIDEST = 2000  # characters of such a line
SHOWN = 3  # exchanges of a failure


def show_gate_failures(box: str, failures: Sequence[GateFailure], out: Console) -> None:
    """Print each failure: what was wrong, the first exchanges, and the file that has all of it."""
    for failure in failures:
        out.print()
        out.print(Text.assemble((f"{failure.engine} failed the gate {failure.gate}", "bold red"), f": {failure.why}"))
        for number, exchange in enumerate(failure.exchanges[:SHOWN], 1):
            _show_exchange(number, exchange, out)
        more = len(failure.exchanges) - SHOWN
        rest = f"; {more} more {'request is' if more == 1 else 'requests are'} in it" if more > 0 else ""
        rest += f", and {failure.more} were too many to be kept" if failure.more else ""
        out.print(Text(f"all that was kept: {failure.path} on {box}{rest}", style="dim"))


def _show_exchange(number: int, exchange: ExchangeTold, out: Console) -> None:
    asked, came = exchange.request, exchange.response
    out.print(Text(f"  {number}. {asked.method} {asked.path} ({asked.length:,} characters)", style="cyan"))
    _show_text(asked.text, out)
    status = f"answered {came.status}" if came.status else "not answered"
    wrong = f": {came.wrong}" if came.wrong else ""
    told = f"     {status} in {seconds(came.seconds)} ({came.length:,} bytes){wrong}"
    out.print(Text(printable(told, WIDEST), style="cyan"))
    _show_text(came.text, out)


def _show_text(text: str, out: Console) -> None:
    lines = text.rstrip().split("\n") if text.strip() else []
    for line in lines[:LINES]:
        out.print(f"     {printable(line, WIDEST)}", markup=False, highlight=False)
    if len(lines) > LINES:
        out.print(Text(f"     … and {len(lines) - LINES} more lines", style="dim"))
