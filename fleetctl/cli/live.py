"""The live view of a move: stages and steps as they go, and what each is waiting for."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from fleetctl.cli.show_plan import title
from fleetctl.plan.types import Plan, PlannedStep
from fleetctl.spec.units import gib, seconds

BAR = 20  # columns of a bar of progress
QUIET = (
    10.0  # seconds between two lines of a step that say the same, or tell of one transfer, where there is no terminal
)
MARKS = {
    "waiting": ("·", "dim"),
    "begin": ("▸", "cyan"),
    "done": ("✓", "green"),
    "already": ("✓", "dim green"),
    "failed": ("✗", "bold red"),
    "undo": ("↶", "yellow"),
    "undone": ("↶", "dim yellow"),
    "undo-failed": ("✗", "bold red"),
}


class LiveView:
    """Context manager. On a terminal the picture changes in place; in a pipe each change is one line."""

    def __init__(self, plan: Plan, out: Console) -> None:
        self._plan = plan
        self._out = out
        self._steps = {step.id: step for step in plan.steps}
        self._state: dict[str, str] = {step.id: "waiting" for step in plan.steps}
        self._since: dict[str, float] = {}
        self._took: dict[str, float] = {}
        self._says: dict[str, str] = {}
        self._lines_at: dict[str, float] = {}
        self._lines: dict[str, str] = {}
        self._note = ""
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._live = Live(get_renderable=self._picture, console=out, refresh_per_second=8) if out.is_terminal else None

    def __enter__(self) -> LiveView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def hear(self, event: dict[str, Any]) -> None:
        """Take one event of the move."""
        if event["type"] == "move":
            self._hear_of_move(event)
        name = event.get("step")
        if name not in self._steps:
            return
        state = event["state"]
        with self._lock:
            if state == "progress":
                self._says[name] = describe(event["seen"])
            else:
                self._state[name] = state
                self._since[name] = time.monotonic()
                if "seconds" in event:
                    self._took[name] = event["seconds"]
                if state in ("done", "already", "undone"):
                    self._says.pop(name, None)
        if self._live is None and state not in ("begin", "undo") and not self._too_soon(name, event):
            self._line(self._steps[name], event)

    def _too_soon(self, name: str, event: dict[str, Any]) -> bool:
        """What a step said a moment ago, or how far its transfer is by now: a log has no use for each of them."""
        if event["state"] != "progress":
            return False
        now, told = time.monotonic(), describe(event["seen"])
        known = "doing" in event["seen"] or told == self._lines.get(name)
        if known and now - self._lines_at.get(name, -QUIET) < QUIET:
            return True
        self._lines_at[name], self._lines[name] = now, told
        return False

    def _hear_of_move(self, event: dict[str, Any]) -> None:
        told = {"stopping": str(event.get("text", "")), "undoing": "undoing everything that was done, last first"}
        note = told.get(event["state"])
        if note is None:
            return
        self._note = note
        if self._live is None:
            self._out.print(note, markup=False)

    def _line(self, step: PlannedStep, event: dict[str, Any]) -> None:
        mark = MARKS.get(event["state"], ("…", ""))[0]
        took = f"  {seconds(event['seconds'])}" if "seconds" in event else ""
        told = describe(event["seen"]) if event["state"] == "progress" else event.get("message", "").split("\n")[0]
        said = f"  {told}" if told else ""
        self._out.print(f"{mark} {step.stage:<8} {step.summary}{took}{said}", markup=False)

    def _picture(self) -> RenderableType:
        with self._lock:
            lines = [Text(f"{title(self._plan)}   {seconds(time.monotonic() - self._began)}", style="bold")]
            if self._note:
                lines.append(Text(self._note, style="bold yellow"))
            for stage in self._plan.stages:
                steps = list(self._plan.stage_steps(stage.name))
                if steps:
                    lines += self._stage(stage.name, stage.summary, steps)
            return Group(*lines)

    def _stage(self, name: str, summary: str, steps: list[PlannedStep]) -> list[Text]:
        states = [self._state[step.id] for step in steps]
        busy = any(state not in ("waiting", "done", "already", "undone") for state in states)
        partly = any(s in ("done", "already") for s in states) and "waiting" in states
        over = all(state in ("done", "already") for state in states)
        mark, style = MARKS["done"] if over else MARKS["begin"] if busy or partly else MARKS["waiting"]
        lines = [Text(f"{mark} {name:<9}{summary}", style=style)]
        if over or not (busy or partly):
            return lines
        return lines + [self._step(step) for step in steps]

    def _step(self, step: PlannedStep) -> Text:
        state = self._state[step.id]
        mark, style = MARKS[state]
        took = self._took.get(step.id)
        if state in ("begin", "undo"):
            took = time.monotonic() - self._since[step.id]
        line = Text(f"    {mark} {step.summary}", style=style)
        if took is not None:
            line.append(f"  {seconds(took)}", style="dim")
        if step.id in self._says:
            line.append(f"  {self._says[step.id]}", style="dim")
        line.truncate(max(20, self._out.width - 1), overflow="ellipsis")
        return line


def _transfer(event: dict[str, Any]) -> str:
    """How far reading or receiving is: a bar, the share, the rate and what is left."""
    done, total, rate = event["bytes"], max(1, event["total"]), event["rate"]
    full = min(BAR, BAR * done // total)
    left = f", {seconds((total - done) / rate)} left" if rate > 0 and done < total else ""
    return f"{event['doing']} {'━' * full}{'─' * (BAR - full)} {100 * done // total} %, {rate / 1e6:.0f} MB/s{left}"


def describe(event: dict[str, Any]) -> str:
    """What a waiting step says of what it sees."""
    parts = []
    if "doing" in event:
        parts.append(_transfer(event))
    if "box" in event:
        parts.append(str(event["box"]))
    if "available" in event:
        parts.append(f"{gib(event['available'])} available")
    if event.get("processes"):
        parts.append(f"{event['processes']} processes left")
    if event.get("ports"):
        parts.append(f"port {', '.join(map(str, event['ports']))} taken")
    if "running" in event:
        parts.append(f"{event['running']} request{'s' if event['running'] != 1 else ''} running")
    if event.get("log"):
        parts.append(str(event["log"]).strip())
    return ", ".join(parts)
