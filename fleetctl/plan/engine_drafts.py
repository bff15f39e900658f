"""The steps of a move on its engines: stop, wait for room, start, prove. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fleetctl.facts.types import Observed
from fleetctl.plan.difference import engine_name
from fleetctl.plan.draft import Draft, Move, of_engine, on_box
from fleetctl.plan.scores import Demand, demands
from fleetctl.render.release import Engine
from fleetctl.spec.fleet_model import Task
from fleetctl.spec.units import gib, parse_duration, seconds

PROOFS: dict[Task, list[str]] = {"generate": ["completion", "stream"], "embed": ["vectors"], "rerank": ["a ranking"]}
"""What an engine is asked to do, by its task."""


def stop_engine(move: Move) -> Iterable[Draft]:
    """Old engines stop."""
    limits = {rank.unit: e.stop_limit for e in move.source.all_engines for rank in e.ranks}
    serving = {(rank.box, rank.unit) for e in move.source.engines if _serves(e, move.observed) for rank in e.ranks}
    for name, box in move.difference.boxes.items():
        for unit, state in sorted(box.stop.items()):
            yield Draft(
                name,
                f"{name}/{unit}",
                f"stop {unit} on {name}",
                frozenset({name}),
                {
                    "unit": unit,
                    "engine": state.engine,
                    "limit": limits.get(unit, 60.0),
                    "serves": (name, unit) in serving,
                },
            )


def _serves(engine: Engine, observed: Observed) -> bool:
    """Every rank of the engine runs."""
    units = [observed[rank.box].units.get(rank.unit) for rank in engine.ranks]
    return all(unit is not None and unit.active == "active" for unit in units)


def await_free(move: Move, limit: Any = 300.0) -> Iterable[Draft]:
    """Nothing of the old engines is left, and what the new ones need is free."""
    for name, box in move.difference.boxes.items():
        gone = sorted({s.engine for s in box.stop.values() if s.engine} | set(box.leftovers))
        if not (gone or box.supersede or box.start):
            continue
        if move.beside:  # the new engines run: they have their memory and their ports
            if gone:
                summary = f"nothing of the old engines is left on {name}"
                yield on_box(name, summary, engines=gone, next=[], ports=[], need=0, limit=parse_duration(limit))
        else:
            yield _wait_for_room(move, name, gone, limit)


def await_room(move: Move, limit: Any = 60.0) -> Iterable[Draft]:
    """Memory and ports for the new engines are free beside the old ones."""
    for name, box in move.difference.boxes.items():
        if box.start:
            yield _wait_for_room(move, name, [], limit)


def _wait_for_room(move: Move, name: str, gone: list[str], limit: Any) -> Draft:
    """A wait until the engines ``gone`` are, and until memory and ports are free for those that start on the box."""
    box = move.difference.boxes[name]
    ports = sorted({port for engine, rank in box.start.values() if rank.rank == 0 for port in engine.listens})
    memory = next((b.memory for b in move.target.budgets if b.box == name), 0)
    need = int(sum(rank.share for _, rank in box.start.values()) * memory) + _pinned(move, name)
    coming = [engine_name(engine, rank, move.target.layout) for engine, rank in box.start.values()]
    return on_box(
        name,
        f"wait until {name} is free" + (f" ({gib(need)} wanted)" if need else ""),
        engines=gone,
        # An engine that starts again is no sign of the wait being over: the old one has the same name.
        next=[engine for engine in coming if engine not in gone],
        ports=ports,
        need=need,
        limit=parse_duration(limit),
    )


def _pinned(move: Move, box: str) -> int:
    """Bytes of the pinned engines that a worker on the box loads when it starts with others than before."""
    lodgers = move.target.pool.lodgers if move.target.pool else ()
    coming = move.difference.boxes[box].lodging
    return sum(
        one.memory for one in lodgers if one.pinned and one.engine.head.box == box and one.engine.head.unit in coming
    )


def start_engine(move: Move) -> Iterable[Draft]:
    """New engines start."""
    for name, box in move.difference.boxes.items():
        for unit, (engine, rank) in sorted(box.start.items()):
            # Ranks of a split start when all of the old ones have stopped: a new one must not meet an old one.
            lanes = frozenset(other.box for other in engine.ranks)
            yield Draft(
                name,
                f"{name}/{unit}",
                f"start {unit} on {name}",
                lanes,
                {
                    "unit": unit,
                    "engine": engine_name(engine, rank, move.target.layout),
                    "limit": engine.stop_limit,
                },
            )


def await_ready(move: Move) -> Iterable[Draft]:
    """Every rank runs and the head answers."""
    layout = move.target.layout
    for engine in move.difference.prove:
        ranks = [
            {"box": rank.box, "unit": rank.unit, "engine": engine_name(engine, rank, layout)} for rank in engine.ranks
        ]
        yield of_engine(
            engine,
            f"{engine.id} gets ready (at most {seconds(engine.load_limit)})",
            ranks=ranks,
            url=engine.url + "/health",
            limit=engine.load_limit,
        )


def serving(move: Move, model: str) -> Engine | None:
    """The engine that serves a model before the move, where one can be asked for its answers; not on the way back."""
    found = [one for one in move.source.engines if one.model == model and _serves(one, move.observed)]
    return found[0] if found and not move.back else None


def ask_current(move: Move) -> Iterable[Draft]:
    """What serves now says to the prompts of gates.same_answers."""
    if move.target.gates.same_answers is None:
        return
    for model in sorted({engine.model for engine in move.difference.prove if engine.task == "generate"}):
        engine = serving(move, model)
        if engine is not None:
            yield Draft(
                engine.head.box,
                engine.id,
                f"{engine.id} is asked what the new engines will be compared with",
                frozenset({engine.head.box}),
                {
                    "engine": engine.id,
                    "model": model,
                    "url": engine.url,
                    "address": engine.address,
                    "port": engine.port,
                    "served_as": engine.served_as[0],
                },
            )


def gate(move: Move) -> Iterable[Draft]:
    """Gates, asked of each engine directly. The long ones are not on the way back, which nothing holds up."""
    for engine in move.difference.prove:
        asked, params = ["model", "context", *PROOFS[engine.task]], dict[str, Any]()
        if engine.task != "generate":
            yield of_engine(engine, f"{engine.id} answers: {', '.join(asked)}", **params)
            continue
        if move.target.gates.long_context is not None and not move.back:
            asked.append("a long prompt")
            params["long_context"] = True
        if move.target.gates.same_answers is not None and serving(move, engine.model) is not None:
            asked.append("the same answers as now")
            params["probes"] = True
        wanted = demands(move, engine)
        asked += [_told(one) for one in wanted]
        floors = {
            one.suite.key: {"floor": one.floor, "before": None if one.current is None else one.current.score}
            for one in wanted
            if one.known is None
        }
        params.update({"scores": floors} if floors else {})
        yield of_engine(engine, f"{engine.id} answers: {', '.join(asked)}", **params)


def _told(wanted: Demand) -> str:
    """What a test wants, in a plan."""
    if wanted.known is not None:
        return f"{wanted.suite.what} ({wanted.known.score:.0f} is known)"
    current = f", now {wanted.current.score:.0f}" if wanted.current is not None else ""
    return f"{wanted.suite.what} (at least {wanted.floor:.0f} of 100{current})"
