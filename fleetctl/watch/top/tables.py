"""The lines of the screen for a width. Pure; words carry everything, colours only help."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.text import Text

from fleetctl.watch.sample import Copy, Figures, Sample
from fleetctl.watch.top.bars import graph, spark
from fleetctl.watch.top.history import History
from fleetctl.watch.top.words import (
    NOT_KNOWN,
    cut,
    gibibytes,
    middle_cut,
    number,
    percent,
    pressure,
    seconds,
    short_name,
    state_of,
)

NARROW, WIDE = 80, 110  # columns from which on there is room for more
_STYLES = {"up": "green", "unknown": "yellow", "drain": "yellow", "maint": "yellow", "activating": "yellow"}


@dataclass(frozen=True)
class Column:
    """A column of figures: its head on a narrow and on a wide screen, and how many letters it has there."""

    head: str
    wide_head: str
    width: int
    wide: int


COLUMNS = (
    Column("out/s", "tokens/s", 6, 8),
    Column("in/s", "read/s", 6, 8),
    Column("run", "running", 4, 7),
    Column("wait", "waiting", 4, 7),
    Column("req/m", "req/min", 5, 7),
    Column("first", "first", 6, 6),
    Column("cache", "cache", 5, 5),
    Column("hits", "prefix", 4, 6),
    Column("spec", "spec", 4, 4),
)


def figures(found: Figures, *, known: bool = True) -> list[str]:
    """The words of one row, in the order of COLUMNS."""
    if not known:
        return [NOT_KNOWN] * len(COLUMNS)
    return [
        number(found.generation_rate),
        number(found.prompt_rate),
        number(found.running),
        number(found.waiting),
        number(found.request_rate),
        seconds(found.first_token),
        percent(found.cache_usage),
        percent(found.prefix_hit_rate),
        percent(found.acceptance),
    ]


class Table:
    """Copies and their total, at a width. ``selected`` is the number of a row, or None."""

    def __init__(self, sample: Sample, history: History, width: int) -> None:
        self._sample, self._history, self._width = sample, history, width
        self._wide = width >= WIDE
        self._widths = [column.wide if self._wide else column.width for column in COLUMNS]
        names = [short_name(copy, sample.layout) for copy in sample.copies]
        rest = width - 2 - 8 - sum(self._widths) - len(self._widths) - 1
        longest = max(map(len, [*names, "total"]))
        self._name = max(5, min(longest, rest if not self._wide else rest - 20))
        self._spark = rest - self._name - 2 if self._wide else 0

    def head(self) -> Text:
        """The names of the columns."""
        heads = [column.wide_head if self._wide else column.head for column in COLUMNS]
        line = f"  {'':<{self._name}} {'state':<8}{self._row(heads)}"
        if self._spark > 0:
            line += f"  {'tokens/s over time':>{self._spark}}"
        return Text(line, style="bold")

    def copies(self, selected: int | None = None) -> list[Text]:
        """A line for each copy."""
        top = self._history.top()
        return [self._copy(copy, index == selected, top) for index, copy in enumerate(self._sample.copies)]

    def total(self) -> Text:
        """The line of all that are known."""
        copies = self._sample.copies
        known = len(copies) - len(self._sample.unknown)
        of = "" if known == len(copies) else f"{known} of {len(copies)}"
        line = f"  {cut('total', self._name):<{self._name}} {of:<8}"
        line += self._row(figures(self._sample.total, known=known > 0))
        if self._spark > 0:
            line += "  " + spark(self._history.generation, self._spark, _highest(self._history.generation))
        return Text(line, style="bold")

    def _copy(self, copy: Copy, selected: bool, top: float) -> Text:
        name = middle_cut(short_name(copy, self._sample.layout), self._name)
        state = cut(state_of(copy), 8)
        line = Text()
        line.append(f"{'>' if selected else ' '} {name:<{self._name}} ", style="bold reverse" if selected else "")
        line.append(f"{state:<8}", style=_STYLES.get(state, "red"))
        line.append(self._row(figures(copy.figures, known=copy.known)))
        if self._spark > 0:
            line.append("  ")
            line.append(spark(self._history.rate_of(copy.id), self._spark, top), style="cyan")
        return line

    def _row(self, words: list[str]) -> str:
        return "".join(f" {word:>{width}}" for word, width in zip(words, self._widths, strict=True))


def over_time(sample: Sample, history: History, width: int, height: int) -> list[Text]:
    """Rates of the copies over time where the table has no room for them, and that of all as a graph of some lines."""
    lines: list[Text] = []
    names = [short_name(copy, sample.layout) for copy in sample.copies]
    label = max(map(len, [*names, "all waiting"]))
    label = min(label, max(11, width // 4))
    room = width - label - 11
    if room < 8:
        return []

    def row(name: str, now: str, bars: str, style: str) -> Text:
        return Text(f"  {cut(name, label):<{label}} {now:>6}  ").append(bars, style=style)

    if width < WIDE:
        lines.append(Text("  tokens/s over time", style="bold"))
        top = history.top()
        for copy, name in zip(sample.copies, names, strict=True):
            now = number(copy.figures.generation_rate if copy.known else None)
            lines.append(row(name, now, spark(history.rate_of(copy.id), room, top), "cyan"))
        lines.append(
            row(
                "all",
                number(sample.total.generation_rate),
                spark(history.generation, room, _highest(history.generation)),
                "green",
            )
        )
    elif height > 0:
        highest = _highest(history.generation)
        lines.append(Text(f"  all tokens/s over time, at most {number(highest)}", style="bold"))
        bars = graph(history.generation, width - 2, height, highest)
        lines += [Text("  ").append(line, style="green") for line in bars]
    waiting = history.waiting[-1] if history.waiting else None
    lines.append(row("all waiting", number(waiting), spark(history.waiting, room, _highest(history.waiting)), "yellow"))
    return lines


def boxes(sample: Sample, width: int) -> list[Text]:
    """A line for each box, and one for the proxy."""
    label = max([len(name) for name in sample.boxes] + [5])
    label = min(label, max(8, width // 3))
    lines = [Text(f"  {'box':<{label}} {'available':>10} {'of':>7} {'swap':>6} {'pressure':>9}", style="bold")]
    for name, box in sample.boxes.items():
        line = Text(f"  {cut(name, label):<{label}} {gibibytes(box.available):>10} {gibibytes(box.memory):>7} ")
        line.append(f"{gibibytes(box.swap_used):>6} ")
        waits = box.pressure is not None and box.pressure >= 10
        line.append(f"{pressure(box.pressure):>9}", style="red" if waits else "")
        if box.why is not None:
            line.append("  unknown", style="yellow")
        elif box.drained:
            line.append("  drained", style="yellow")
        lines.append(line)
    proxy = sample.proxy
    told = f"  {'proxy':<{label}} {number(proxy.waiting):>5} waiting {number(proxy.running):>5} running"
    lines.append(Text(f"{told} {number(proxy.request_rate):>5} requests/s"))
    return lines


def _highest(values: Iterable[float | None]) -> float:
    return max((value for value in values if value is not None), default=0.0)
