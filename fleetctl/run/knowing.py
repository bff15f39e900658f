"""Whether the engines of a move know the flags they would be started with: each box's own build is asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

from fleetctl.engine.runtimes.flags import split_flags
from fleetctl.engine.runtimes.helptext import known_flags, said_of, wrong_words
from fleetctl.engine.runtimes.runtime import Runtime
from fleetctl.errors import FleetError, RefusedError
from fleetctl.remote.boxes import Boxes
from fleetctl.render.engine import Place, engine_arguments, engine_environment, runtime_of
from fleetctl.render.help import LIMIT, help_question
from fleetctl.render.release import Engine, Rank
from fleetctl.spec.fleet import Fleet

OURS = " (fleetctl sets it, from a key of fleet.yaml that this build cannot follow)"


def refuse_unknown_flags(fleet: Fleet, boxes: Boxes, layout: str | None, engines: Sequence[Engine]) -> list[str]:
    """Raises RefusedError that names model, box, version, flag and the nearest one that there is.

    Returns what could not be asked, one sentence each.
    """
    wanted = [(engine, rank) for engine in engines for rank in engine.ranks if layout is not None]
    if not wanted or layout is None:
        return []
    questions = {(e.model, r.box): _question(fleet, layout, e, r) for e, r in wanted}
    answers = _ask(boxes, questions)
    reasons: list[str] = []
    notes: dict[str, None] = {}
    for engine, rank in wanted:
        told, runtime = answers[engine.model, rank.box], runtime_of(fleet, engine.model)
        known = known_flags(told.get("text", ""))
        if not known:
            why = told.get("why") or "it lists none"
            notes[f"{rank.box}: which flags {runtime.title} of {engine.model} knows could not be asked: {why}"] = None
            continue
        build = f"{runtime.title} {told['version']}".strip()
        words = engine_arguments(fleet, _place(layout, engine, rank))
        given = _given(fleet, layout, engine.model, rank.box)
        for wrong in wrong_words(words, known, runtime):
            why = "" if wrong.flag in given or wrong.value is not None else OURS
            reasons.append(f"model {engine.model} on {rank.box}: {said_of(wrong, build, why)}")
    if reasons:
        lines = "\n".join(f"- {reason}" for reason in dict.fromkeys(reasons))
        raise RefusedError(f"engines would not start; nothing was changed:\n{lines}")
    return list(notes)


def _given(fleet: Fleet, layout: str, model: str, box: str) -> frozenset[str]:
    """Flags that stand in arguments: of fleet.yaml."""
    placement = fleet.layouts[layout][model]
    layers = (fleet.models[model].arguments, placement.arguments, placement.boxes[box].arguments)
    return frozenset(group[0].partition("=")[0] for layer in layers for group in split_flags(layer))


def _place(layout: str, engine: Engine, rank: Rank) -> Place:
    boxes = tuple(one.box for one in engine.ranks)
    return Place(layout, engine.model, rank.box, rank.rank, boxes, engine.port, rank.share)


def _question(fleet: Fleet, layout: str, engine: Engine, rank: Rank) -> dict[str, Any]:
    runtime: Runtime = runtime_of(fleet, engine.model)
    plain, _ = engine_environment(fleet, _place(layout, engine, rank))
    return help_question(fleet.launch(engine.model), runtime, plain)


def _ask(boxes: Boxes, questions: dict[tuple[str, str], dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Every different question once on each box, all at the same time."""
    answers: dict[tuple[str, str], dict[str, Any]] = {}
    said: dict[tuple[str, str], dict[str, Any]] = {}
    different = {(box, json.dumps(question, sort_keys=True)): question for (_, box), question in questions.items()}

    def one(key: tuple[str, str], question: dict[str, Any]) -> None:
        try:
            said[key] = boxes[key[0]].call_with("program_help", question, timeout=LIMIT + 30)
        except FleetError as error:
            said[key] = {"why": error.message}

    threads = [threading.Thread(target=one, args=item, daemon=True) for item in different.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for (model, box), question in questions.items():
        answers[model, box] = said[box, json.dumps(question, sort_keys=True)]
    return answers
