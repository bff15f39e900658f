"""Batch jobs as people see them: the bar while one runs, and what is said of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

import typer
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fleetctl.cli.output import console, emit, say
from fleetctl.cli.show_history import when
from fleetctl.errors import InterruptedMoveError
from fleetctl.pool.batch.books import Standing
from fleetctl.pool.batch.complete import Progress
from fleetctl.pool.batch.estimate import Price, Tally
from fleetctl.pool.batch.job import Job
from fleetctl.pool.batch.output import Written
from fleetctl.spec.units import seconds

BAR = 24  # columns
QUIET = 10.0  # seconds between two lines where there is no terminal, and between two events
_COLOURS = {"finished": "green", "running": "cyan", "cancelled": "yellow", "partly submitted": "yellow"}


@dataclass
class Left:
    """What is running as this command is left."""

    job: str = ""
    accepted: int = 0
    lines: int = 0


@contextmanager
def told_at_ctrl_c() -> Iterator[Left]:
    """Ctrl-C ends the command and not the job: say so, and how to come back."""
    left = Left()
    try:
        yield left
    except KeyboardInterrupt:
        if left.job:
            all_in = left.accepted >= left.lines
            some = "all lines are" if all_in else f"{left.accepted} of {left.lines} lines are"
            told = f"{left.job} goes on without this command: {some} accepted and will be answered.\n"
            told += f"`fleetctl batch status {left.job}` looks at it; the same command "
            told += "comes back to it." if all_in else "submits the rest and comes back to it."
            say(told, as_json=False)
        raise typer.Exit(InterruptedMoveError.exit_code) from None


class Shown:
    """Context manager that shows a job as it goes. On a terminal one line changes in place; else lines follow."""

    def __init__(self, price: Price | None, left: Left, *, as_json: bool) -> None:
        self._price = price
        self._left = left
        self._as_json = as_json
        self._out = console(error=True)
        self._before = 0
        self._job: Job | None = None
        self._last: Progress | None = None
        self._told_at = time.monotonic()
        self._began = time.monotonic()
        live = self._out.is_terminal and not as_json
        self._live = Live(get_renderable=self._picture, console=self._out, refresh_per_second=8) if live else None

    def __enter__(self) -> Shown:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()

    def begun(self, job: Job, standing: Standing) -> None:
        """The job and how far it was already."""
        self._job, self._before = job, standing.answered + standing.waiting
        self._left.job, self._left.lines, self._left.accepted = job.name, job.lines, self._before
        if self._as_json:
            emit("job", **_standing(standing))
            return
        known = f"; {standing.answered} are answered, {standing.waiting} wait" if self._before else ""
        cost = f", cost about {_money(self._price.of(job.prompt, job.answer))}" if self._price else ""
        about = f"about {_short(job.prompt + job.answer)} tokens{cost}"
        self._out.print(f"{job.name}: {job.lines} lines for {', '.join(job.models)}, {about}{known}", markup=False)

    def hear(self, progress: Progress) -> None:
        """How far it is now."""
        gone = bool(progress.away or progress.full) and not (self._last and (self._last.away or self._last.full))
        self._last = progress
        self._left.accepted = min(self._left.lines, self._before + progress.submitted)
        now = time.monotonic()
        if self._live is None and (gone or now - self._told_at >= QUIET):
            self._told_at = now
            if self._as_json:
                emit("progress", job=self._left.job, **_progress(progress, self._price))
            else:
                self._out.print(self._words(progress), markup=False)

    def submitted(self, job: Job, lines: int) -> None:
        """All is accepted, and nobody waits."""
        self._stop()
        if self._as_json:
            emit("submitted", job=job.name, lines=lines)
            return
        told = f"{lines} lines were submitted" if lines else "nothing was left to submit"
        console().print(f"{job.name}: {told}; `fleetctl batch fetch {job.name}` writes the answers", markup=False)

    def written(self, job: Job, done: Written, tally: Tally, *, cancelled: bool) -> None:
        """The answers are in files."""
        self._stop()
        if cancelled:
            say(f"{job.name} was cancelled meanwhile; what was answered before is written", as_json=self._as_json)
        show_written(
            job.name, done, tally, took=time.monotonic() - self._began, price=self._price, as_json=self._as_json
        )

    def _picture(self) -> Text:
        return Text() if self._last is None else Text(self._words(self._last), no_wrap=True, overflow="ellipsis")

    def _words(self, progress: Progress) -> str:
        if progress.away > 0:
            away = seconds(progress.away)
            return f"NATS has not answered for {away}; it keeps what it accepted, and this goes on once it is back"
        if progress.full == "answers":
            done = self._before + progress.submitted
            return f"{done} lines submitted, no room for more answers: fetch and remove others (`fleetctl batch list`)"
        if progress.phase == "submitting":
            done, of = self._before + progress.submitted, max(1, self._before + progress.to_submit)
            room = ", the queue is full: more as lines are answered" if progress.full else ""
            return f"{_bar(done, of)} {done}/{of} submitted{room}"
        tally = progress.tally
        parts = [f"{_bar(tally.answered, progress.lines)} {tally.answered}/{progress.lines} answered"]
        if progress.rate:
            parts.append(f"{progress.rate:.1f}/s")
        if tally.tokens:
            a_second = f" ({_short(progress.token_rate)}/s)" if progress.token_rate else ""
            parts.append(f"{_short(tally.tokens)} tokens{a_second}")
        if self._price is not None and tally.answered:
            cost = self._price.of(tally.prompt, tally.answer)
            parts.append(f"cost {_money(cost)} of about {_money(cost * progress.lines / tally.answered)}")
        if tally.failed:
            parts.append(f"{tally.failed} errors")
        if progress.left is not None and tally.answered < progress.lines:
            parts.append(f"{seconds(progress.left)} left")
        return ", ".join(parts)


def show_written(
    job: str,
    done: Written,
    tally: Tally | None = None,
    *,
    took: float | None = None,
    price: Price | None = None,
    as_json: bool,
) -> None:
    """Say which files there are now."""
    if as_json:
        told = _tally(tally, price) if tally else {}
        told |= {"job": job, "output": str(done.output), "answered": done.answered}
        told |= {"errors": str(done.errors) if done.failed else None, "failed": done.failed}
        emit("written", **told)
        return
    out = console()
    used = f", {_short(tally.tokens)} tokens" if tally and tally.tokens else ""
    used += f", cost {_money(price.of(tally.prompt, tally.answer))}" if tally and price else ""
    used += f", {seconds(took)}" if took is not None else ""
    out.print(f"{job}: {done.answered} answers in {done.output}{used}", markup=False)
    if done.failed:
        out.print(f"{done.failed} errors in {done.errors}", markup=False, style="yellow")


def show_jobs(found: list[Standing], *, as_json: bool) -> None:
    """One line for each job."""
    if as_json:
        emit("jobs", jobs=[_standing(one) for one in found])
        return
    if not found:
        console().print("no jobs; `fleetctl batch run FILE` makes one", markup=False)
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("job", "state", "answered", "waiting", "file", "models", "submitted"):
        table.add_column(name, justify="right" if name in ("answered", "waiting") else "left")
    for one in found:
        job = one.job
        state = f"[{_COLOURS[one.state]}]{one.state}[/]"
        row = (f"{one.answered}/{job.lines}", str(one.waiting), job.file, ", ".join(job.models), when(job.created))
        table.add_row(escape(job.name), state, *map(escape, row))
    console().print(table)


def show_job(standing: Standing, tally: Tally, price: Price | None, *, as_json: bool) -> None:
    """One job in full."""
    if as_json:
        emit("job", **_standing(standing), **_tally(tally, price))
        return
    job, out = standing.job, console()
    out.print(f"{job.name}: {standing.state}", markup=False)
    since = f"submitted {when(job.created)}" + (f", cancelled {when(job.cancelled)}" if job.cancelled else "")
    out.print(f"  {job.file}, {job.lines} lines for {', '.join(job.models)}; {since}", markup=False)
    errors = f", {tally.failed} of them with errors" if tally.failed else ""
    missing = f", {standing.missing} not submitted" if standing.missing > 0 and not job.cancelled else ""
    bar = _bar(standing.answered, job.lines)
    waiting = f"{standing.waiting} waiting or at work"
    out.print(f"  {bar} {standing.answered} answered{errors}, {waiting}{missing}", markup=False)
    if tally.tokens:
        cost = f", cost {_money(price.of(tally.prompt, tally.answer))}" if price else ""
        out.print(f"  {_short(tally.prompt)} tokens of prompts, {_short(tally.answer)} of answers{cost}", markup=False)
    if standing.state == "finished":
        out.print(f"  `fleetctl batch fetch {job.name}` writes the answers", markup=False)
    elif missing:
        out.print("  `fleetctl batch run` on its file submits the rest", markup=False)


def show_cancelled(standing: Standing, removed: int, *, as_json: bool) -> None:
    """What became of a job that was to be cancelled."""
    job = standing.job
    if as_json:
        emit("cancelled", job=job.name, removed=removed, answered=standing.answered, lines=job.lines)
        return
    if standing.state == "finished":
        console().print(f"{job.name} is finished: there was nothing to cancel", markup=False)
        return
    console().print(
        f"{job.name}: {removed} lines were removed; {standing.answered} of {job.lines} are answered, and "
        f"`fleetctl batch fetch {job.name}` writes them",
        markup=False,
    )


def _standing(standing: Standing) -> dict[str, Any]:
    told = asdict(standing.job)
    told["job"] = told.pop("name")
    more = {"state": standing.state, "answered": standing.answered, "waiting": standing.waiting}
    return told | more | {"missing": max(0, standing.missing)}


def _tally(tally: Tally, price: Price | None) -> dict[str, Any]:
    told: dict[str, Any] = {"failed": tally.failed, "prompt_tokens": tally.prompt, "answer_tokens": tally.answer}
    return told | ({"cost": price.of(tally.prompt, tally.answer)} if price else {})


def _progress(progress: Progress, price: Price | None) -> dict[str, Any]:
    told: dict[str, Any] = {"phase": progress.phase, "submitted": progress.submitted, "to_submit": progress.to_submit}
    told |= {"answered": progress.tally.answered, "lines": progress.lines, "rate": progress.rate}
    told |= {"token_rate": progress.token_rate, "seconds_left": progress.left, "away": progress.away}
    told["full"] = progress.full
    return told | _tally(progress.tally, price)


def _bar(done: int, of: int) -> str:
    full = min(BAR, BAR * done // max(1, of))
    return f"{'━' * full}{'─' * (BAR - full)}"


def _money(cost: float) -> str:
    return f"{cost:.2f}" if cost >= 1 or not cost else f"{cost:.2g}"


def _short(number: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return f"{number:.0f}"
