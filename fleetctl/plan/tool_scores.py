"""What an engine has to score in tool use before it gets traffic. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleetctl.facts.types import ScoreFacts
from fleetctl.plan.difference import engine_name
from fleetctl.plan.draft import Move
from fleetctl.render.release import Engine, Release

SUITE = "tools"


@dataclass(frozen=True)
class Demand:
    """``floor`` is the lowest score that passes. ``known``: the build has been tested; it is not tested again."""

    floor: float
    known: ScoreFacts | None
    current: ScoreFacts | None


def noted(engine: Engine, release: Release, score: float, categories: Mapping[str, float], at: float) -> dict[str, Any]:
    """The record of a score, as the box that keeps the journal notes it; ``at`` in epoch seconds."""
    build = engine_name(engine, engine.head, release.layout)
    return {
        "suite": SUITE,
        "build": build,
        "engine": engine.id,
        "at": at,
        "score": round(score, 1),
        "categories": dict(categories),
    }


def demand(move: Move, engine: Engine) -> Demand | None:
    """What the gate wants of an engine; None where there is no gate, and on the way back, which nothing closes."""
    gate = move.target.gates.tools
    if gate is None or move.back:
        return None
    current = _current(move, engine)
    compared = current is not None and gate.no_worse_than == "current"
    floor = max(gate.at_least, current.score - gate.tolerance if current is not None and compared else 0.0)
    known = _score(move, engine, move.target)
    return Demand(floor, known if known is not None and known.score >= floor else None, current)


def unknown_scores(move: Move) -> list[str]:
    """Models whose new build is to be compared with one of which no score is known."""
    gate = move.target.gates.tools
    if gate is None or gate.no_worse_than is None or move.back:
        return []
    served = {engine.model for engine in move.source.engines}
    generating = [engine for engine in move.difference.prove if engine.task == "generate"]
    new = {engine.model for engine in generating if _current(move, engine) is None}
    return [
        f"no tool-use score of what serves {model} now is known, so that gates.tools.no_worse_than is not checked: "
        "`fleetctl eval tools` notes one"
        for model in sorted(served & new)
    ]


def _current(move: Move, engine: Engine) -> ScoreFacts | None:
    """The last score of a build that serves the same model now."""
    found = [
        told
        for other in move.source.engines
        if other.model == engine.model and (told := _score(move, other, move.source)) is not None
    ]
    return max(found, key=lambda told: told.at, default=None)


def _score(move: Move, engine: Engine, release: Release) -> ScoreFacts | None:
    build = engine_name(engine, engine.head, release.layout)
    return move.observed[move.lead].scores.get(f"{SUITE} {build}")
