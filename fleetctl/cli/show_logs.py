"""Lines of logs as people and programs read them."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime

from fleetctl.cli.output import console, emit
from fleetctl.watch.logs.line import Line, Note
from fleetctl.watch.logs.names import Source

# Of the sixteen colours that every terminal has, those that can be read on a dark and on a light background.
_COLOURS = ("cyan", "magenta", "blue", "green", "yellow", "red")


def show_logs(reading: Iterable[Line | Note | None], sources: list[Source], boxes: list[str], *, as_json: bool) -> None:
    """Print lines on standard output and what is said of boxes on standard error; as JSON all of it on the first.

    Raises BrokenPipeError when nobody reads any more, also while there is nothing to print.
    """
    shown = False
    show = _Events(sources) if as_json else _Text(sources, boxes)
    for item in reading:
        if isinstance(item, Line):
            show.line(item)
            shown = True
        elif item is not None:
            show.note(item)
        else:
            sys.stdout.flush()
            _still_read()
    sys.stdout.flush()
    if not shown and not as_json:
        units = ", ".join(sorted({source.unit for source in sources}))
        told = f"nothing in the journal of {units} (answered health checks are shown with --all alone)"
        console(error=True).print(told, markup=False)


def _still_read() -> None:
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except OSError:  # not a file: a test's
        return
    if any(what & (select.POLLERR | select.POLLNVAL) for _, what in poll.poll(0)):
        raise BrokenPipeError


class _Events:
    def __init__(self, sources: list[Source]) -> None:
        self._sources = {(source.box, source.unit): source for source in sources}

    def line(self, line: Line) -> None:
        source = self._sources.get((line.box, line.unit))
        emit(
            "line",
            time=datetime.fromtimestamp(line.at, UTC).isoformat(timespec="microseconds"),
            box=line.box,
            engine=(source.engine or None) if source else None,
            unit=line.unit,
            identifier=line.identifier,
            pid=int(line.pid) if line.pid.isdecimal() else None,
            priority=int(line.priority) if line.priority.isdecimal() else None,
            text=line.text,
            box_time=line.box_at,
        )

    def note(self, note: Note) -> None:
        emit("note", box=note.box, text=note.text)


class _Text:
    def __init__(self, sources: list[Source], boxes: list[str]) -> None:
        out = console()
        coloured = out.is_terminal and not out.no_color
        per_box: dict[str, set[str]] = {}
        for source in sources:
            per_box.setdefault(source.box, set()).add(source.called)
        several = any(len(called) > 1 for called in per_box.values())
        names = {(s.box, s.unit): f"{s.box} {s.called}" if several else s.box for s in sources}
        width = max(map(len, names.values()), default=0)
        self._prefixes: dict[tuple[str, str], str] = {}
        for key, name in names.items():
            colour = _COLOURS[boxes.index(key[0]) % len(_COLOURS)]
            self._prefixes[key] = _painted(f"{name:<{width}}", colour) if coloured else f"{name:<{width}}"
        self._width = width
        self._second, self._clock = -1, ""

    def line(self, line: Line) -> None:
        who = self._prefixes.get((line.box, line.unit)) or f"{line.box:<{self._width}}"
        said = f"systemd: {line.text}" if line.identifier == "systemd" else line.text
        sys.stdout.write(f"{self._time(line.at)} {who}  {said}\n")

    def note(self, note: Note) -> None:
        sys.stdout.flush()  # in the order in which it happened, where both go to the same terminal
        console(error=True).print(f"-- {note.box}: {note.text}", markup=False, style="yellow")

    def _time(self, at: float) -> str:
        second = int(at)
        if second != self._second:
            self._second, self._clock = second, time.strftime("%m-%d %H:%M:%S", time.localtime(second))
        return f"{self._clock}.{int(at % 1 * 1000):03d}"


def _painted(text: str, colour: str) -> str:
    """The text in one of the terminal's own colours."""
    number = {"red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36}[colour]
    return f"\x1b[{number}m{text}\x1b[0m"
