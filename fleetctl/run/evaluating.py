"""A suite of questions against the engines of the live layout, each asked directly."""

from __future__ import annotations

import time
from collections.abc import Callable

from fleetctl.errors import RefusedError, SpecError
from fleetctl.evals.asking import Endpoint
from fleetctl.evals.score import Score
from fleetctl.facts.proxies import servers_up_somewhere
from fleetctl.facts.types import lead_of
from fleetctl.gates.scored import Exam, score_of
from fleetctl.plan.scores import noted
from fleetctl.render.release import Engine, Release
from fleetctl.run.generating import generating
from fleetctl.run.planning import Look, Subject, live_release
from fleetctl.spec.problems import near_or_all


def engines_named(subject: Subject, seen: Look, name: str | None, *, copies: bool) -> tuple[Release, list[Engine]]:
    """The live release, and the engines of it to ask: one of each model, with ``copies`` all.

    ``name`` is a model, an engine's id or a box. Raises SpecError, with the nearest, for one that there is not, and
    RefusedError when no layout is live.
    """
    live = live_release(seen.observed, lead_of(seen.observed, subject.fleet.proxy.lead), subject.fleet.fleet)
    pooled = {one.engine.model for one in live.pool.lodgers} if live.pool else set()
    if name in pooled or (pooled and not live.engines):
        raise RefusedError(
            f"{name or live.layout}: requests for models of a pool wait in one queue, and no engine is asked past it",
            hint=f"fleetctl eval --against URL-OF-THE-PROXY --model {name or min(pooled)}",
        )
    if not live.engines:
        raise RefusedError("no layout is live: there is no engine to ask", hint="--against URL asks any other")
    found = [
        engine
        for engine in live.engines
        if name is None or name in (engine.id, engine.model) or any(rank.box == name for rank in engine.ranks)
    ]
    if not found:
        names = [*dict.fromkeys(engine.model for engine in live.engines), *(engine.id for engine in live.engines)]
        raise SpecError(f"no engine or model {name} in {live.layout}", hint=near_or_all(str(name), names))
    found = list(generating(found))
    if copies or name in [engine.id for engine in live.engines]:
        return live, found
    up = servers_up_somewhere(live.proxy, seen.observed)
    ready = sorted(found, key=lambda engine: f"{engine.backend}/{engine.server}" not in up)
    return live, list({engine.model: engine for engine in reversed(ready)}.values())


def evaluate(subject: Subject, live: Release, engine: Engine, exam: Exam, say: Callable[[str], None]) -> Score:
    """Ask one engine everything, through a tunnel to its box, and note its score on the box that keeps the journal.

    Raises EngineError when the time of the test is over, FleetError when the box is lost.
    """
    with subject.boxes[engine.head.box].tunnel(engine.address, engine.port) as socket:
        endpoint = Endpoint(engine.url, engine.served_as[0], socket=socket, within=exam.within)
        told = score_of(exam, endpoint, say)
    note(subject, live, engine, exam.name, told)
    return told


def note(subject: Subject, live: Release, engine: Engine, key: str, told: Score) -> None:
    """Note the score of an engine's build in a suite, for gates to compare with."""
    record = noted(engine, live, key, told.total, told.categories, time.time())
    subject.boxes[subject.fleet.proxy.lead].call("score_note", record=record)
