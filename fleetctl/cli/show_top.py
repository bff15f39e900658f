"""Samples of the fleet for scripts: as a table, or one JSON event each."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict

from fleetctl.cli.output import console, emit
from fleetctl.watch.sample import Sample
from fleetctl.watch.top.history import History
from fleetctl.watch.top.pool import pool_lines
from fleetctl.watch.top.tables import Table, boxes
from fleetctl.watch.top.wrong import remarks

WIDTH = 119  # columns where there is no terminal: all of it, without bars


def show_samples(take: Callable[[], Sample], interval: float, *, once: bool, as_json: bool) -> Sample:
    """Print samples, the first of which has no rates and is only shown when there are more. Returns the last."""
    history = History()
    history.add(take())
    while True:
        time.sleep(interval)
        sample = take()
        history.add(sample)
        if as_json:
            emit("sample", **asdict(sample))
        else:
            _show(sample, history)
        if once:
            return sample


def _show(sample: Sample, history: History) -> None:
    out = console()
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
    table = Table(sample, history, width)
    out.print(f"{sample.fleet}: {sample.layout or 'no layout'}", markup=False)
    copies = [table.head(), *table.copies(), table.total()] if sample.copies or sample.pool is None else []
    for line in (*copies, *pool_lines(sample, width), *boxes(sample, width)):
        out.print(line, soft_wrap=True)
    for remark in remarks(sample, None, history):
        out.print(f"{remark.weight}: {remark.text}", markup=False)
