"""The screen itself. Samples come from threads of their own: it answers keys also while a box is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from textwrap import wrap
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.events import Resize
from textual.message import Message
from textual.widgets import Static

from fleetctl.errors import FleetError
from fleetctl.facts.assess import Assessment
from fleetctl.watch.sample import Sample
from fleetctl.watch.top.child import PROGRAM
from fleetctl.watch.top.commands import alone, chosen_from, command_of
from fleetctl.watch.top.dialogs import Ask, Help, Output
from fleetctl.watch.top.history import History
from fleetctl.watch.top.pool import pool_lines
from fleetctl.watch.top.tables import NARROW, WIDE, Table, boxes, over_time
from fleetctl.watch.top.words import cut
from fleetctl.watch.top.wrong import remarks

STATE_EVERY = 10.0  # seconds between two looks at what status tells
MOST_REMARKS = 5  # lines of the screen
GRAPH = 14  # lines of the large graph at most, on a screen that is high enough
_WORDS = {"move": ("under way", "bold cyan"), "wrong": ("wrong", "bold red"), "note": ("note", "yellow")}
KEYS = "d drain  u undrain  r restart  l log  space pause  ? help  q leave"


class Sampled(Message):
    """A sample was taken."""

    def __init__(self, sample: Sample) -> None:
        super().__init__()
        self.sample = sample


class Judged(Message):
    """The state of the fleet was looked at, or why it could not be."""

    def __init__(self, found: Assessment | None, failed: str | None = None) -> None:
        super().__init__()
        self.found, self.failed = found, failed


class Top(App[None]):
    """``take`` takes a sample and ``judge`` looks at the state of the fleet; both may take as long as they like.

    ``interval`` are seconds between samples. ``options`` say which fleet the commands behind the keys are about.
    Without ``may_change`` only logs are shown: there is no file of the fleet here. ``program`` is what runs commands.
    One that is not ``live`` takes no samples, and is given some.
    """

    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    #head, #keys { height: 1; }
    #remarks { height: auto; }
    #body { height: 1fr; scrollbar-size-vertical: 1; background: ansi_default; }
    #body > Static { height: auto; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", "leave"),
        Binding("up,k", "move(-1)", "up", priority=False),
        Binding("down,j", "move(1)", "down"),
        Binding("d", "command('drain')", "drain"),
        Binding("u", "command('undrain')", "undrain"),
        Binding("r", "command('restart')", "restart"),
        Binding("l", "command('logs')", "log"),
        Binding("space", "pause", "pause"),
        Binding("question_mark,h", "help", "help"),
    ]

    def __init__(
        self,
        take: Callable[[], Sample],
        judge: Callable[[], Assessment] | None = None,
        *,
        interval: float = 2.0,
        options: tuple[str, ...] = (),
        may_change: bool = True,
        program: tuple[str, ...] = PROGRAM,
        live: bool = True,
    ) -> None:
        super().__init__(ansi_color=True)  # the terminal's own colours: they fit its background, dark or light
        self._take, self._judge, self._interval = take, judge, interval
        self._options, self._may_change, self._program = options, may_change, program
        self.history = History()
        self._live = live
        self._sample: Sample | None = None
        self._found: Assessment | None = None
        self._failed: str | None = None
        self._paused = False
        self._selected = 0
        self._over = threading.Event()
        self._look = threading.Event()

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield Static(id="head")
        yield Static(id="remarks")
        with VerticalScroll(id="body", can_focus=False):
            yield Static(id="table")
            yield Static(id="boxes")
            yield Static(id="time")
        yield Static(Text(KEYS), id="keys")

    def on_mount(self) -> None:
        """Begin to look."""
        self.draw()
        if not self._live:
            return
        threading.Thread(target=self._sampling, name="samples", daemon=True).start()
        if self._judge is not None:
            threading.Thread(target=self._judging, args=(self._judge,), name="state", daemon=True).start()

    def on_unmount(self) -> None:
        """Look no more."""
        self._over.set()
        self._look.set()

    def _sampling(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            self.post_message(Sampled(self._take()))
            self._over.wait(max(0.05, self._interval - (time.monotonic() - began)))

    def _judging(self, judge: Callable[[], Assessment]) -> None:
        while not self._over.is_set():
            try:
                self.post_message(Judged(judge()))
            except FleetError as error:
                self.post_message(Judged(None, error.message.splitlines()[0]))
            self._look.wait(STATE_EVERY)
            self._look.clear()

    def on_sampled(self, message: Sampled) -> None:
        """Remember it, and show it unless the picture is held still."""
        self.history.add(message.sample)
        if not self._paused:
            self._sample = message.sample
            self.draw()

    def on_judged(self, message: Judged) -> None:
        """The same for what status tells."""
        self._found, self._failed = message.found, message.failed
        if not self._paused:
            self.draw()

    def on_resize(self, event: Resize) -> None:
        """Draw for the new size."""
        self.draw()

    def draw(self) -> None:
        """Everything anew: there are a few dozen lines at most."""
        screen = self.screen_stack[0]
        if not screen.query("#head"):  # it is being made, or taken down
            return
        width, height = max(NARROW // 2, self.size.width - 1), self.size.height
        screen.query_one("#head", Static).update(self._head(width))
        told = self._remarks(width)
        of_state = screen.query_one("#remarks", Static)
        of_state.update(Text("\n").join(told))
        of_state.display = bool(told)
        sample = self._sample
        if sample is None:
            screen.query_one("#table", Static).update(Text("  looking at the engines…"))
            return
        self._selected = max(0, min(self._selected, len(chosen_from(sample)) - 1))
        table = Table(sample, self.history, width)
        copies = [table.head(), *table.copies(self._selected), table.total()]
        lines = [Text(), *copies] if sample.copies or sample.pool is None else []
        in_pool = pool_lines(sample, width, self._selected - len(sample.copies))
        lines += [Text(), *in_pool] if in_pool else []
        of_boxes = [Text(), *boxes(sample, width)]
        room = height - 2 - len(told) - len(lines) - len(of_boxes)
        tall = min(GRAPH, room - 5) if width >= WIDE else 0
        in_time = over_time(sample, self.history, width, max(0, tall)) if sample.copies or sample.pool is None else []
        for name, text in (("table", lines), ("boxes", of_boxes), ("time", [Text(), *in_time])):
            screen.query_one(f"#{name}", Static).update(Text("\n").join(text))

    def _head(self, width: int) -> Text:
        sample = self._sample
        if sample is None:
            return Text("fleetctl top", style="bold")
        where = sample.layout or "no layout"
        generation = f", generation {sample.generation}" if sample.generation is not None else ""
        left = f"{sample.fleet}: {where}{generation}"
        clock = time.strftime("%H:%M:%S", time.localtime(sample.at))
        right = f"PAUSED at {clock}" if self._paused else f"{clock}, every {self._interval:g} s"
        left = cut(left, width - len(right) - 2)
        return Text(left, style="bold").append(right.rjust(width - len(left)), style="not bold")

    def _remarks(self, width: int) -> list[Text]:
        told = remarks(self._sample, self._found, self.history, self._failed)
        lines: list[Text] = []
        for number, remark in enumerate(told):
            word, style = _WORDS[remark.weight]
            text = remark.text.removeprefix(f"{word}: ")
            first, *rest = wrap(f"{word}: {text}", width, subsequent_indent="  ", max_lines=2, placeholder=" …")
            if len(lines) + 1 + len(rest) > MOST_REMARKS - (number + 1 < len(told)):
                lines.append(Text(f"and {len(told) - number} more: fleetctl status"))
                break
            lines.append(Text(f"{word}:", style=style).append(first[len(word) + 1 :], style="not bold default"))
            lines += [Text(line) for line in rest]
        return lines

    def action_move(self, by: int) -> None:
        """Choose another copy."""
        self._selected += by
        self.draw()
        body = self.query_one("#body", VerticalScroll)
        line = self._selected + 2  # an empty line and the heads are above the first
        if line >= body.scroll_offset.y + body.size.height:
            body.scroll_to(y=line - body.size.height + 1, animate=False)
        elif line - 1 < body.scroll_offset.y:
            body.scroll_to(y=max(0, line - 2), animate=False)

    def action_pause(self) -> None:
        """Hold the picture still, or go on."""
        self._paused = not self._paused
        self.draw()

    def action_help(self) -> None:
        """What the keys do."""
        self.push_screen(Help())

    def action_command(self, key: str) -> None:
        """Show the command of a key for the chosen copy, ask, run it."""
        sample = self._sample
        rows = chosen_from(sample) if sample is not None else []
        if sample is None or not rows:
            self.notify("there is no copy to choose")
            return
        copy = rows[self._selected]
        command = command_of(key, copy, self._options)
        if command.changes and not self._may_change:
            self.notify("--via: run changes where the fleet.yaml is", severity="warning")
            return
        if key == "drain" and alone(copy, sample):
            self.notify(f"without {copy.boxes[0]} no engine serves {copy.model}: it cannot be drained here")
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self.push_screen(Output(command, self._program), lambda _: self._look.set())

        if command.changes:
            self.push_screen(Ask(command), answered)
        else:
            answered(True)
