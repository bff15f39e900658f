"""What commands print: text for people, one JSON event a line for programs."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_ONE_LINE = threading.Lock()
# Controls, and marks that turn the direction of text; surrogates, which no terminal's encoding has.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
MIN_ROOM = 20  # columns beside an indent; on a terminal that is narrower there is none


def emit(kind: str, **event: Any) -> None:
    """Print one event as a line of JSON on standard output, at once."""
    try:
        line = json.dumps({"type": kind, **event}, default=str, allow_nan=False) + "\n"
    except ValueError:  # NaN is no JSON, and a program that reads the line would stop there
        line = json.dumps(_known({"type": kind, **event}), default=str) + "\n"
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


def _known(value: Any) -> Any:
    """The same with None for every number that is none."""
    if isinstance(value, dict):
        return {key: _known(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_known(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def console(*, error: bool = False) -> Console:
    """A rich console that is honest in pipes: no colour and no width of its own where there is no terminal.

    A reader who is gone is a BrokenPipeError, as everywhere; rich alone would end the process with 1. What a terminal
    would obey in the words of boxes, engines and models (a title, a cleared screen) is shown as unprintable.
    """
    from rich.console import Console as RichConsole
    from rich.segment import Segment

    class Console(RichConsole):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

        def render(self, *what: Any, **how: Any) -> Iterator[Segment]:
            for segment in super().render(*what, **how):
                if segment.control is None and _OBEYED.search(segment.text):
                    segment = Segment(_OBEYED.sub("\N{REPLACEMENT CHARACTER}", segment.text), segment.style)
                yield segment

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


def say(text: str, *, as_json: bool) -> None:
    """A note, beside the result."""
    if as_json:
        emit("note", text=text)
    else:
        console(error=True).print(text, markup=False)


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
