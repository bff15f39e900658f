"""Two layouts beside each other, as people read them and as programs do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fleetctl.bench.patient import Patience
from fleetctl.bench.stored import Latencies, StoredRun
from fleetctl.cli.output import hang
from fleetctl.run.comparison import Comparison, Room, Side, Way
from fleetctl.spec.units import seconds

Saw = dict[tuple[str, str], Patience]
Rows = Iterator[tuple[str, str, str]]
NONE = "-"


def event(found: Comparison, saw: Saw) -> dict[str, object]:
    """All of it. Times are seconds, cache is tokens."""
    sides = [
        {
            "layout": side.layout,
            "live": side.live,
            "run": side.run.model_dump(mode="json") if side.run else None,
            "cache": [{**asdict(room), "tokens": room.tokens, "full_contexts": room.requests} for room in side.rooms],
            "cache_total": side.tokens,
            "restart": [{**asdict(loss), "words": loss.words} for loss in side.losses],
        }
        for side in found.sides
    ]
    ways = [
        {**asdict(way), "client": asdict(saw[way.origin, way.goal]) if (way.origin, way.goal) in saw else None}
        for way in found.ways
    ]
    return {
        "fleet": found.fleet,
        "model": found.model,
        "layouts": sides,
        "moves": ways,
        "notes": list(found.notes),
        "missing": found.missing,
        "conclusion": found.conclusion,
    }


def show_comparison(found: Comparison, saw: Saw, out: Console) -> None:
    """Print the table, what is to be known about it, and the conclusion."""
    one, other = found.sides
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    table.add_column(f"{found.model} in {found.fleet}", style="dim", no_wrap=True)
    for side in found.sides:
        table.add_column(side.layout + (" (live)" if side.live else ""), overflow="fold")
    for name, left, right in (*_measured(one.run, other.run), *_rooms(one, other), *_restarts(one, other)):
        table.add_row(Text(name), Text(left), Text(right))
    out.print(table)
    out.print()
    for way in found.ways:
        hang(out, Text(f"{way.origin} → {way.goal}: {_way(way, saw)}"), 4)
    for note in found.notes:
        hang(out, Text("note: ", style="yellow").append(note, style="default"), 6)
    for layout, command in found.missing.items():
        hang(out, Text(f"{layout}: no run of this load is kept. To measure it: {command}"), 4)
    if found.missing:
        names = " ".join(side.layout for side in found.sides)
        hang(out, Text(f"`fleetctl compare {names} --run` measures both, with a move there and one back"), 4)
    out.print()
    hang(out, Text(found.conclusion, style="bold"), 0)


def _measured(one: StoredRun | None, other: StoredRun | None) -> Rows:
    """What the runs measured; rows that neither has are left out."""
    if one is None and other is None:
        return

    def both(name: str, told: Callable[[StoredRun], str | None]) -> Rows:
        cells = [told(run) if run else None for run in (one, other)]
        if any(cells):
            yield name, cells[0] or NONE, cells[1] or NONE

    yield from both("load", lambda run: f"{run.load.mix}, {run.load.how_much}, seed {run.load.seed}")
    yield from both("measured", _when)
    yield from both("engine", lambda run: ", ".join(f"{name} {build}" for name, build in run.builds.items()))
    yield from both("tokens/s out", lambda run: f"{run.figures.tokens_out_rate:.1f}")
    yield from both("tokens/s in", lambda run: f"{run.figures.tokens_in_rate:.1f}")
    yield from both("requests/min", lambda run: f"{run.figures.requests_per_minute:.1f}")
    yield from both("answered", lambda run: f"{run.figures.answered} of {run.figures.requests}")
    yield from both("first token, s", lambda run: _spread(run.figures.ttft, 2))
    yield from both("further tokens, s", lambda run: _spread(run.figures.tpot, 3))
    yield from both("whole answer, s", lambda run: _spread(run.figures.total, 2))
    targets = [run.target for run in (one, other) if run is not None]
    if targets[0] is not None and all(target == targets[0] for target in targets):
        yield from both(f"within {targets[0]}", _good)


def _when(run: StoredRun) -> str:
    number = "" if run.generation is None else f", generation {run.generation}"
    return f"{age(time.time() - run.at)} ago, for {seconds(run.duration)}{number}"


def _spread(told: Latencies | None, digits: int) -> str | None:
    if told is None:
        return None
    return f"p50 {told.p50:.{digits}f}  p90 {told.p90:.{digits}f}  p99 {told.p99:.{digits}f}"


def _good(run: StoredRun) -> str | None:
    told = run.figures
    if told.good_share is None or told.good_per_minute is None:
        return None
    return f"{told.good_share:.1%}, {told.good_per_minute:.1f} requests/min"


def _rooms(one: Side, other: Side) -> Rows:
    yield "cache of an engine", _copies(one), _copies(other)
    yield "holds full contexts", _contexts(one), _contexts(other)
    if max(len(one.rooms), len(other.rooms)) > 1:
        yield "cache in total", _total(one), _total(other)


def _copies(side: Side) -> str:
    """The cache of each engine; copies that have the same are told once."""
    told = [_room(room) for room in side.rooms]
    if len(set(told)) == 1 and len(told) > 1:
        return f"{told[0]}, in each of {len(told)}"
    return "; ".join(told) or NONE


def _room(room: Room) -> str:
    if room.logged is not None and room.expected is not None:
        return f"{room.logged:,} tokens logged ({room.expected:,} expected)"
    if room.logged is not None:
        return f"{room.logged:,} tokens logged"
    return "not known" if room.expected is None else f"{room.expected:,} tokens expected"


def _contexts(side: Side) -> str:
    known = [f"{room.requests:.1f}" for room in side.rooms if room.requests is not None]
    if not known:
        return NONE
    told = known[0] if len(set(known)) == 1 else ", ".join(known)
    return f"{told} of {side.rooms[0].context:,} tokens"


def _total(side: Side) -> str:
    if side.tokens is None:
        return NONE
    return f"{side.tokens:,} tokens, {sum(room.requests or 0 for room in side.rooms):.1f} full contexts"


def _restarts(one: Side, other: Side) -> Rows:
    boxes = dict.fromkeys(loss.box for side in (one, other) for loss in side.losses)
    told = [{loss.box: loss.words for loss in side.losses} for side in (one, other)]
    for box in boxes:
        yield f"{box} restarts", told[0].get(box, "nothing"), told[1].get(box, "nothing")


def _way(way: Way, saw: Saw) -> str:
    parts = ["never measured"]
    if way.measured:
        last = way.measured[0]
        more = f", at most {seconds(max(one.gap for one in way.measured))} in the last {len(way.measured)} moves"
        parts = [
            f"no engine for {seconds(last.gap)}, {age(time.time() - last.at)} ago" + more * (len(way.measured) > 1)
        ]
    patience = saw.get((way.origin, way.goal))
    if patience is not None and patience.asked:
        failed = sum(patience.failed.values())
        parts.append(
            f"a client waited {seconds(patience.longest)} at most, and {failed or 'none'} of its requests failed"
        )
    planned = "not known" if way.planned is None else seconds(way.planned)
    parts.append(f"{'planned' if way.live else 'estimated'} {planned}: {way.why}")
    return "; ".join(parts)


def age(past: float) -> str:
    """How long ago, as people say it: ``3 min``, ``5 h``, ``2 days``."""
    if past < 120:
        return f"{max(0.0, past):.0f} s"
    if past < 2 * 3600:
        return f"{past / 60:.0f} min"
    return f"{past / 3600:.0f} h" if past < 2 * 86400 else f"{past / 86400:.0f} days"
