"""The pool in a terminal: what is loaded on each box, what runs and what waits."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fleetctl.cli.output import hang
from fleetctl.run.pool import PoolEngine, PoolModel, PoolSeen, PoolWorker, Wish
from fleetctl.spec.units import seconds, size

_STYLES = {"loaded": "green", "loading": "yellow", "unloading": "yellow", "failed": "red", "absent": "dim"}
_DONE: dict[Wish, str] = {
    "load": "is loaded as soon as there is room",
    "evict": "goes once its requests are answered, and stays out until it is loaded or pinned",
    "pin": "is pinned",
    "unpin": "is not pinned any more",
}


def show_pool(seen: PoolSeen, model: str | None, out: Console) -> None:
    """Print engines box by box, and what is wrong."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("box", "model", "phase"):
        table.add_column(name, overflow="fold")
    for name in ("memory", "runs", "here", "queue", "oldest", "last used", "load"):
        table.add_column(name, justify="right", no_wrap=True)
    for box, worker in seen.workers.items():
        for key, one in worker.models.items():
            for engine in one.engines:
                if model in (None, key, engine.name):
                    table.add_row(escape(box), escape(engine.name), *_row(worker, key, one, engine))
    out.print(table)
    for box, worker in seen.workers.items():
        memory = worker.memory
        note = ", takes no more requests" if worker.draining else ""
        hang(out, f"[dim]{escape(box)}: {size(memory.taken)} of {size(memory.limit)} taken{note}[/]", 2)
    for problem in seen.problems:
        hang(out, f"[red]wrong[/]: {escape(problem)}", 7)


def _row(worker: PoolWorker, key: str, model: PoolModel, engine: PoolEngine) -> tuple[str, ...]:
    queue = worker.queue.models.get(key) if worker.queue is not None else None
    style = _STYLES.get(engine.phase, "")
    phase = f"[{style}]{escape(engine.phase)}[/]" if style else escape(engine.phase)
    marks = ["pinned"] if engine.pinned else []
    marks += [{"load": "to be loaded", "evict": "kept out"}.get(engine.wish, engine.wish)] if engine.wish else []
    return (
        phase + escape("".join(f", {mark}" for mark in marks)),
        size(engine.memory),
        str(engine.running),
        str(model.local),
        "?" if queue is None else str(queue.waiting + queue.batch),
        "" if queue is None or queue.oldest is None or not queue.waiting else seconds(queue.oldest),
        _used(engine),
        "" if engine.load_seconds is None else seconds(engine.load_seconds),
    )


def _used(engine: PoolEngine) -> str:
    if engine.calls or engine.running:
        return "now"
    return "never" if engine.idle_seconds is None else f"{seconds(engine.idle_seconds)} ago"


def told_words(model: str, wish: Wish, answer: Mapping[str, object]) -> str:
    """What a worker answered to a wish, in a line: with the phase of each engine, where it tells."""
    phases = [f"{name} {one['phase']}" for name, one in answer.items() if isinstance(one, dict) and "phase" in one]
    return f"{model} {_DONE[wish]}" + (f" (now: {', '.join(phases)})" if phases else "")
