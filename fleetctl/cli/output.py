"""What commands print: text for people, one JSON event a line for programs."""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_ONE_LINE = threading.Lock()
MIN_ROOM = 20  # columns beside an indent; on a terminal that is narrower there is none


def emit(kind: str, **event: Any) -> None:
    """Print one event as a line of JSON on standard output, at once."""
    line = json.dumps({"type": kind, **event}, default=str) + "\n"
    with _ONE_LINE:  # steps of several boxes tell at the same time
        sys.stdout.flush()
        try:
            descriptor = sys.stdout.fileno()
        except OSError:  # not a file: a test's
            sys.stdout.write(line)
            return
        # Past Python's buffers, which lose data when a signal comes while they wait for a slow reader.
        rest = memoryview(line.encode())
        while rest:
            rest = rest[os.write(descriptor, rest) :]


def console(*, error: bool = False) -> Console:
    """A rich console that is honest in pipes: no colour and no width of its own where there is no terminal.

    A reader who is gone is a BrokenPipeError, as everywhere; rich alone would end the process with 1.
    """
    from rich.console import Console as RichConsole

    class Console(RichConsole):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    stream = sys.stderr if error else sys.stdout
    width = None if stream.isatty() else 160
    return Console(stderr=error, highlight=False, soft_wrap=not stream.isatty(), width=width)


def hang(out: Console, line: Text | str, indent: int) -> None:
    """Print a line; what does not fit a terminal's width goes on below, ``indent`` columns in. A string is markup.

    In a pipe it stays one line, for grep. A word that is longer than all the room is cut.
    """
    from rich.text import Text

    text = Text.from_markup(line) if isinstance(line, str) else line
    room = out.width - indent
    if not out.is_terminal or len(text.plain) <= out.width or room < MIN_ROOM:
        out.print(text)
        return
    lead = text[:indent]
    for part in text[indent:].wrap(out, room):
        part.rstrip()
        out.print(lead + part)
        lead = Text(" " * indent)


def fail(message: str, hint: str | None, code: int, *, as_json: bool) -> None:
    """Say what went wrong, where every command says it."""
    if as_json:
        emit("error", message=message, hint=hint, exit_code=code)
        return
    out = console(error=True)
    out.print("[bold red]error:[/] ", end="")
    out.print(message, markup=False)
    if hint:
        for line in hint.splitlines():
            out.print(f"  {line}", markup=False)
