"""What lies over the screen: a question, the output of a command, help."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import RichLog, Static

from fleetctl.watch.top.bars import UNKNOWN
from fleetctl.watch.top.child import PROGRAM, Child
from fleetctl.watch.top.commands import Command
from fleetctl.watch.top.words import NOT_KNOWN

LINES = 2000  # lines of a command's output that are kept

HELP = f"""\
up, down  choose a copy
d  u      drain its box (out of the proxy, running requests finish); undrain
r         restart the engines of that box, one at a time
l         its log
space     hold the picture still, and go on
q         leave

A change is shown as the command that it is, and asked for first.

state     the proxy's word (up, drain, maint, down, hung), or that of
          its unit where that does not run
out in    tokens/s made, and read
run wait  requests that run, and that wait in the engine
first     time to the first token
cache     part of the KV cache in use; hits: part of prompts found in it
spec      part of the drafted tokens that was accepted
pressure  part of 10 s in which something waited for memory
{NOT_KNOWN} {UNKNOWN}       not known, which is never shown as 0
"""


class Ask(ModalScreen[bool]):
    """Shows a command and asks whether to run it."""

    CSS = """
    Ask { align: center middle; }
    Ask > Vertical { width: 76; max-width: 96%; height: auto; border: round ansi_yellow; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "run it"),
        Binding("n,escape,q,enter", "answer(False)", "leave it"),
    ]

    def __init__(self, command: Command) -> None:
        super().__init__()
        self._command = command

    def compose(self) -> ComposeResult:
        """The sentence, the command, the question."""
        with Vertical():
            yield Static(Text(self._command.says), id="says")
            yield Static(Text(f"\n  {self._command}\n", style="bold"), id="command")
            yield Static(Text("Run it?  y: yes   n: no"), id="question")

    def action_answer(self, yes: bool) -> None:
        """The answer of the person."""
        self.dismiss(yes)


class Output(ModalScreen[None]):
    """Runs a command and shows what it says."""

    CSS = """
    Output { align: center middle; }
    Output > Vertical { width: 96%; height: 90%; border: round ansi_cyan; padding: 0 1; }
    Output RichLog { height: 1fr; background: ansi_default; scrollbar-size-vertical: 1; }
    Output Static { height: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "leave", "close"),
        Binding("ctrl+c", "stop", "stop it", priority=True),
    ]

    def __init__(self, command: Command, program: tuple[str, ...] = PROGRAM) -> None:
        super().__init__()
        self._command, self._program = command, program
        self._child: Child | None = None
        self._status: int | None = None

    def compose(self) -> ComposeResult:
        """The command, what it says, and how to get away."""
        with Vertical():
            yield Static(Text(str(self._command), style="bold"), id="command")
            yield RichLog(max_lines=LINES, min_width=20, wrap=True, highlight=False, markup=False, id="output")
            yield Static(Text(self._footer()), id="end")

    def on_mount(self) -> None:
        """Start it."""
        app = self.app  # of a screen that is closed it cannot be asked any more, and the child may live longer

        def tell(show: Callable[[Any], None], what: Any) -> None:
            with suppress(RuntimeError):  # the whole screen is gone
                app.call_from_thread(show, what)  # which waits, so that a fast log does not pile up here

        words = self._command.words
        self._child = Child(words, partial(tell, self._write), partial(tell, self._ended), self._program)

    def _write(self, line: str) -> None:
        for output in self.query(RichLog):  # none, once this is closed
            output.write(Text(line))

    def _ended(self, status: int) -> None:
        self._status = status
        for end in self.query("#end").results(Static):
            end.update(Text(self._footer()))

    def _footer(self) -> str:
        if self._status is not None:
            return f"ended with status {self._status}; Esc: close"
        return "Ctrl-C: stop it" if self._command.changes else "Esc: close"

    def action_stop(self) -> None:
        """Ctrl-C for the command."""
        if self._child is not None:
            self._child.interrupt()

    def action_leave(self) -> None:
        """Close. A command that changes something is not left alone while it runs; a log ends with its screen."""
        if self._child is not None and self._child.running():
            if self._command.changes:
                self.app.bell()
                return
            self._child.interrupt()
        self.dismiss()


class Help(ModalScreen[None]):
    """What the keys do and what the figures are."""

    CSS = """
    Help { align: center middle; }
    Help > Static { width: auto; max-width: 100%; height: auto; border: round ansi_cyan; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter,question_mark,space", "dismiss", "close")]

    def compose(self) -> ComposeResult:
        """The text."""
        yield Static(Text(HELP))
