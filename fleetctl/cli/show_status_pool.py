"""What ``fleetctl status`` shows of a pool: its engines box by box, what the queue holds, the programs."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fleetctl.cli.output import hang
from fleetctl.facts.assess import EngineState
from fleetctl.spec.units import seconds, size
from fleetctl.watch.pool_sample import PoolEngineSample, PoolSample

_UNKNOWN = "?"
_STYLES = {"loaded": "green", "absent": "dim", "failed": "red"}
_NAMES = {"nats": "NATS", "gateway": "gateway", "worker": "worker", "batch": "batch jobs"}


def show_pool_of(pool: PoolSample, states: Mapping[str, EngineState], out: Console) -> None:
    """Print it. ``states`` has what systemd and the boxes say of the engines."""
    engines = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("pool engine", "state"):
        engines.add_column(name, overflow="fold")
    for name in ("memory", "runs", "here", "last used"):
        engines.add_column(name, justify="right", no_wrap=True)
    for engine in pool.engines:
        style = _STYLES.get(engine.phase, "yellow")
        word = f"[{style}]{escape(engine.phase)}[/]"
        drained = engine.id in states and states[engine.id].server == "drained"
        marks = [*(["pinned"] if engine.pinned else []), *(["[yellow]drained[/]"] if drained else [])]
        engines.add_row(
            escape(engine.id),
            ", ".join([word, *marks]),
            _UNKNOWN if engine.memory is None else size(engine.memory),
            _told(engine.running),
            _told(engine.local),
            _used(engine),
        )
    out.print(engines)
    for engine in pool.engines:
        if engine.phase == "failed":
            hang(
                out, f"[red]{escape(engine.id)}[/] could not be loaded: {escape(engine.reason or 'no reason told')}", 2
            )
    queue = Table(box=None, pad_edge=False, header_style="dim")
    queue.add_column("queue", overflow="fold")
    for name in ("waits", "oldest", "at work", "batch lines", "dead letters"):
        queue.add_column(name, justify="right", no_wrap=True)
    for name, model in pool.models.items():
        oldest = "" if model.waiting == 0 else _UNKNOWN if model.oldest is None else seconds(model.oldest)
        queue.add_row(
            escape(name), _told(model.waiting), oldest, _told(model.at_work), _told(model.batch), _told(model.dead)
        )
    out.print(queue)
    _programs(pool, out)


def _used(engine: PoolEngineSample) -> str:
    if engine.running:
        return "now"
    if engine.running is None:
        return _UNKNOWN
    return "never" if engine.idle_seconds is None else f"{seconds(engine.idle_seconds)} ago"


def _told(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.0f}"


def _programs(pool: PoolSample, out: Console) -> None:
    parts = []
    for kind, name in _NAMES.items():
        mine = [program for program in pool.programs if program.kind == kind]
        told = []
        for program in mine:
            lost = program.state == "active" and program.connected is False
            word = "not connected" if lost else program.state
            style = "green" if word == "active" else "yellow" if word in ("unknown", "activating") else "red"
            told.append(f"{escape(program.box)} [{style}]{escape(word)}[/]")
        if told:
            parts.append(f"{name}: {', '.join(told)}")
    hang(out, "; ".join(parts), 2)
