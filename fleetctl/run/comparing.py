"""What is known of two layouts, from fleet.yaml, the boxes and the loads that were kept. Nothing is changed."""

from __future__ import annotations

from collections.abc import Sequence

from fleetctl.bench.stored import Wanted, choose
from fleetctl.capacity.logs import parse_log
from fleetctl.errors import FleetError, RefusedError, SpecError
from fleetctl.facts.history import HistoryFacts, gather_history
from fleetctl.facts.took import last_caches, last_loads
from fleetctl.facts.types import Observed, lead_of
from fleetctl.plan.gap import gap_between
from fleetctl.plan.losses import losses
from fleetctl.render.layout import render_layout
from fleetctl.render.release import Engine, Release
from fleetctl.run.comparison import Comparison, MeasuredGap, Room, Side, Way
from fleetctl.run.layout_load import Wish, kept_runs
from fleetctl.run.planning import Books, Look, live_release, look, measured_weights, plan_cutover, wanted_release
from fleetctl.run.sizing import size_up
from fleetctl.run.subject import Subject
from fleetctl.spec.problems import near_or_all

REMEMBERED = 500  # moves that are looked through for measured gaps
SHOWN = 5
TIME_FOR_LOG = 60.0  # seconds


def layouts_of(subject: Subject, names: Sequence[str], model: str | None) -> tuple[tuple[str, str], str]:
    """The two layouts and the model that both serve. Raises SpecError, with the nearest name."""
    fleet = subject.fleet
    for name in names:
        if name not in fleet.layouts:
            raise SpecError(f"there is no layout {name} in fleet.yaml", hint=near_or_all(name, fleet.layouts))
    if len(set(names)) != 2:
        raise SpecError("two layouts are compared, and they are not the same", hint=near_or_all("", fleet.layouts))
    one, other = names
    both = [name for name in fleet.layouts[one] if name in fleet.layouts[other]]
    if model is not None:
        if model not in both:
            known = both or list(fleet.models)
            raise SpecError(f"{model} is not a model of both {one} and {other}", hint=near_or_all(model, known))
        return (one, other), model
    if not both:
        raise SpecError(f"no model is in both {one} and {other}: there is nothing to compare")
    if len(both) > 1:
        raise SpecError(f"several models are in both: {', '.join(both)}", hint=f"say which: --model {both[0]}")
    return (one, other), both[0]


def compare(
    subject: Subject, layouts: tuple[str, str], wanted: Wanted, wish: Wish, books: Books
) -> tuple[Comparison, Look]:
    """Everything of both layouts; ``wish`` is the load that would be sent where one has no run of it."""
    releases = {name: wanted_release(subject, name) for name in layouts}
    seen = look(subject, tuple(releases.values()))
    live = live_release(seen.observed, lead_of(seen.observed, subject.fleet.proxy.lead), subject.fleet.fleet)
    weights = measured_weights(seen.observed, tuple(releases.values()))
    if weights:
        releases = {
            name: render_layout(subject.fleet, name, weights=weights, spec_text=subject.text) for name in layouts
        }
    chosen = choose(kept_runs(subject), layouts, wanted)
    loads = last_loads(seen.observed)
    sides = [
        Side(
            layout=name,
            run=chosen.runs[name],
            rooms=_rooms(subject, release, live, seen.observed, wanted.model),
            losses=losses(release, wanted.model, loads),
            live=live.layout == name,
        )
        for name, release in releases.items()
    ]
    told, _ = gather_history(subject.boxes, REMEMBERED)
    one, other = layouts
    found = Comparison(
        fleet=subject.fleet.fleet,
        model=wanted.model,
        sides=(sides[0], sides[1]),
        ways=(
            _way(subject, releases[one], releases[other], live, seen, books, told),
            _way(subject, releases[other], releases[one], live, seen, books, told),
        ),
        notes=(*chosen.notes, *_changed(sides, releases)),
        missing=_missing(sides, wish),
    )
    return found, seen


def _missing(sides: Sequence[Side], wish: Wish) -> dict[str, str]:
    """The command that measures each layout that has no run: the load of the other one, if that has one."""
    command = next((side.run.load for side in sides if side.run is not None), wish.load).command
    return {
        side.layout: command if side.live else f"fleetctl cutover --to {side.layout}; {command}"
        for side in sides
        if side.run is None
    }


def _changed(sides: Sequence[Side], releases: dict[str, Release]) -> list[str]:
    """Layouts whose engines are no longer what they were when they were measured."""
    notes = []
    for side in sides:
        if side.run is None:
            continue
        engines = [engine for engine in releases[side.layout].all_engines if engine.model == side.run.load.model]
        now = {engine.id: tuple(rank.digest[:12] for rank in engine.ranks) for engine in engines}
        if now != side.run.engines:
            notes.append(f"{side.layout} was measured with other settings than fleet.yaml has for it now")
    return notes


def _rooms(subject: Subject, release: Release, live: Release, observed: Observed, model: str) -> tuple[Room, ...]:
    """The caches of a model's engines: what they logged, now or at their last start, and what is expected."""
    engines = [engine for engine in release.engines if engine.model == model]
    kept = last_caches(observed)
    forecasts = size_up(subject.fleet, subject.boxes, release, engines)
    running = {engine.id: engine for engine in live.engines}
    rooms = []
    for engine in engines:
        one = forecasts.get(engine.id)
        logged = _logged(subject, running[engine.id]) if engine.id in running else None
        rooms.append(
            Room(
                engine=engine.id,
                context=engine.context,
                logged=logged if logged is not None else kept.get(engine.id),
                expected=one.tokens if one else None,
                about=one.lines if one else (),
            )
        )
    return tuple(rooms)


def _logged(subject: Subject, engine: Engine) -> int | None:
    """What an engine that runs said of its cache when it started; None where its log is gone."""
    told = subject.boxes[engine.head.box].call("start_lines", unit=engine.head.unit, timeout=TIME_FOR_LOG)
    return parse_log("\n".join(told["lines"])).tokens


def _way(
    subject: Subject,
    origin: Release,
    goal: Release,
    live: Release,
    seen: Look,
    books: Books,
    told: dict[str, HistoryFacts],
) -> Way:
    start, end = origin.layout or "", goal.layout or ""
    measured = _measured(told, start, end)
    if live.layout != origin.layout:
        gap = gap_between(origin, goal, seen.observed)
        return Way(start, end, gap.expected, gap.why, live=False, measured=measured)
    try:
        gap = plan_cutover(subject, goal, seen, books).gap
    except RefusedError as refusal:
        return Way(start, end, None, f"refused as things are: {_first(refusal)}", live=True, measured=measured)
    return Way(start, end, gap.expected, gap.why, live=True, measured=measured)


def _first(error: FleetError) -> str:
    """The first reason of a refusal."""
    lines = [line.removeprefix("- ") for line in error.message.splitlines()]
    return lines[1] if len(lines) > 1 else lines[0]


def _measured(told: dict[str, HistoryFacts], origin: str, goal: str) -> tuple[MeasuredGap, ...]:
    """Gaps of the moves between two layouts that came to their end, newest first."""
    found = {
        move.move: MeasuredGap(move.written, move.gap, move.move, move.operation)
        for facts in told.values()
        for move in facts.moves
        if (move.from_layout, move.to_layout, move.result) == (origin, goal, "done") and move.gap is not None
    }
    return tuple(sorted(found.values(), key=lambda one: one.at, reverse=True)[:SHOWN])
