"""The lines of a pool: an engine a line, then the queue. Pure; words carry everything, colours only help."""

from __future__ import annotations

from rich.text import Text

from fleetctl.watch.pool_sample import PoolEngineSample, PoolSample
from fleetctl.watch.sample import Sample
from fleetctl.watch.top.words import gibibytes, middle_cut, number, seconds

_STYLES = {"loaded": "green", "absent": "dim", "failed": "red"}
_HEADS = ("req/s", "tok/s", "run", "here", "queue", "oldest", "memory", "pinned")
_WIDTHS: tuple[int, ...] = (6, 7, 4, 5, 6, 7, 7, 7)


def pool_lines(sample: Sample, width: int, selected: int | None = None) -> list[Text]:
    """Engines and queue; nothing where there is no pool. ``queue`` and ``oldest`` are the model's, of all boxes.

    Where names need the room, ``pinned`` is left out, and a name loses what is before its box.
    ``selected`` is the number of an engine, or of none.
    """
    pool = sample.pool
    if pool is None:
        return []
    names = [_name(engine, sample.layout) for engine in pool.engines]
    longest, widths = max(map(len, [*names, "pool"])), _WIDTHS
    if longest > _room(width, widths):
        widths = widths[:-1]
    label = max(5, min(longest, _room(width, widths)))
    head = _row(_HEADS, widths)
    lines = [Text(f"  {'pool':<{label}} {'state':<10}{head}", style="bold")]
    drained = {program.box for program in pool.programs if program.drained}
    for index, (engine, name) in enumerate(zip(pool.engines, names, strict=True)):
        state = "drained" if engine.box in drained and engine.phase == "loaded" else engine.phase
        chosen = index == selected
        line = Text()
        line.append(
            f"{'>' if chosen else ' '} {middle_cut(name, label):<{label}} ", style="bold reverse" if chosen else ""
        )
        line.append(f"{state:<10}", style=_STYLES.get(state, "yellow"))
        line.append(_row(_figures(engine, pool), widths))
        lines.append(line)
    return [*lines, Text(_queue(pool))]


def _name(engine: PoolEngineSample, layout: str | None) -> str:
    return engine.id.removeprefix(f"{layout}/") if layout else engine.id


def _room(width: int, widths: tuple[int, ...]) -> int:
    """Columns for names."""
    return width - 2 - 11 - sum(widths) - len(widths)


def _row(words: tuple[str, ...], widths: tuple[int, ...]) -> str:
    return "".join(f" {word:>{size}}" for word, size in zip(words, widths, strict=False))


def _figures(engine: PoolEngineSample, pool: PoolSample) -> tuple[str, ...]:
    model = pool.models[engine.model]
    return (
        number(engine.request_rate),
        number(engine.token_rate),
        number(engine.running),
        number(engine.local),
        number(model.waiting),
        seconds(model.oldest) if model.waiting != 0 else "",
        gibibytes(engine.memory),
        "yes" if engine.pinned else "",
    )


def _queue(pool: PoolSample) -> str:
    oldest = f", the oldest for {seconds(pool.oldest)}" if pool.waiting else ""
    batch = f", {number(pool.batch)} batch lines" if pool.batch else ""
    return (
        f"  queue: {number(pool.waiting)} waiting{oldest}{batch}; {number(pool.refused_rate)}/s refused (429), "
        f"{number(pool.redelivered_rate)}/s redelivered, {number(pool.dead)} dead letters"
    )
