"""What an engine has to score in tests before it gets traffic. A score belongs to a build and a suite. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from fleetctl.facts.types import ScoreFacts, suite_name
from fleetctl.plan.difference import engine_name
from fleetctl.plan.draft import Move
from fleetctl.render.release import Engine, Release
from fleetctl.spec.fleet_gates import ScoreGate

TOOLS = "tools"


@dataclass(frozen=True)
class Suite:
    """A test that a release asks for. ``key`` is its name and, where it is a file, the digest of that: another text is
    another suite. ``tasks`` is the text of a file, None for a test of tool use."""

    key: str
    gate: ScoreGate
    tasks: str | None = None

    @property
    def name(self) -> str:
        """The key as people read it."""
        return suite_name(self.key)

    @property
    def what(self) -> str:
        """What it tests, in a plan."""
        return "tool use" if self.key == TOOLS else self.name


@dataclass(frozen=True)
class Demand:
    """``floor`` is the lowest score that passes. ``known``: the build has been tested; it is not tested again."""

    suite: Suite
    floor: float
    known: ScoreFacts | None
    current: ScoreFacts | None


def tasks_key(file: str, text: str) -> str:
    """The key of a file of tasks."""
    return f"{PurePath(file).name}@{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def suites_of(release: Release, engine: Engine) -> list[Suite]:
    """The tests that an engine has to pass; none for one that generates nothing."""
    found: list[Suite] = []
    if engine.task != "generate":
        return found
    tools = release.gates.tools
    if tools is not None:
        found.append(Suite(tools.suite, tools))
    for gate in release.gates.evaluations:
        text = release.tasks.get(gate.file, "")
        found.append(Suite(tasks_key(gate.file, text), gate, text))
    return [suite for suite in found if not suite.gate.models or engine.model in suite.gate.models]


def noted(
    engine: Engine, release: Release, key: str, score: float, categories: Mapping[str, float], at: float
) -> dict[str, Any]:
    """The record of a score, as the box that keeps the journal notes it; ``at`` in epoch seconds."""
    build = engine_name(engine, engine.head, release.layout)
    return {
        "suite": key,
        "build": build,
        "engine": engine.id,
        "at": at,
        "score": round(score, 1),
        "categories": dict(categories),
    }


def demands(move: Move, engine: Engine) -> list[Demand]:
    """What the gates want of an engine; nothing on the way back, which nothing closes."""
    return [] if move.back else [_demand(move, engine, suite) for suite in suites_of(move.target, engine)]


def _demand(move: Move, engine: Engine, suite: Suite) -> Demand:
    gate, current = suite.gate, _current(move, engine, suite)
    compared = current is not None and gate.no_worse_than == "current"
    floor = max(gate.at_least, current.score - gate.tolerance if current is not None and compared else 0.0)
    known = _score(move, engine, move.target, suite)
    return Demand(suite, floor, known if known is not None and known.score >= floor else None, current)


def unknown_scores(move: Move) -> list[str]:
    """Models whose new build is to be compared with one of which no score is known."""
    if move.back:
        return []
    served = {engine.model for engine in move.source.engines}
    found = {}
    for engine in move.difference.prove:
        for suite in suites_of(move.target, engine):
            if suite.gate.no_worse_than and engine.model in served and _current(move, engine, suite) is None:
                found[engine.model, suite.key] = suite
    return [_unknown(model, suite) for (model, _), suite in sorted(found.items())]


def _unknown(model: str, suite: Suite) -> str:
    if suite.tasks is None:
        words, place = f"tools{'' if suite.key == TOOLS else f' --suite {suite.key}'}", "tools"
        score = "tool-use score" if suite.key == TOOLS else f"score in {suite.key}"
    else:
        words, place, score = suite.name, "evaluations", f"score in {suite.name}, as it is now,"
    return (
        f"no {score} of what serves {model} now is known, so that gates.{place}: no_worse_than is not checked: "
        f"`fleetctl eval {words}` notes one"
    )


def _current(move: Move, engine: Engine, suite: Suite) -> ScoreFacts | None:
    """The last score of a build that serves the same model now."""
    found = [
        told
        for other in move.source.engines
        if other.model == engine.model and (told := _score(move, other, move.source, suite)) is not None
    ]
    return max(found, key=lambda told: told.at, default=None)


def _score(move: Move, engine: Engine, release: Release, suite: Suite) -> ScoreFacts | None:
    build = engine_name(engine, engine.head, release.layout)
    return move.observed[move.lead].scores.get(f"{suite.key} {build}")


def wanted_scores(params: Mapping[str, Any]) -> dict[str, float]:
    """The floors by key of suite that a planned gate has; plans of earlier versions have that of tool use alone."""
    earlier = {TOOLS: float(params["tools"])} if "tools" in params else {}
    return {**earlier, **{key: float(told["floor"]) for key, told in params.get("scores", {}).items()}}
