"""Gates with a score: a test of tool use or a file of tasks against one engine, with a floor for what it scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetctl.engine.client import EngineError
from fleetctl.engine.exchange import Exchange
from fleetctl.evals.asking import Endpoint, run_suite, run_tasks
from fleetctl.evals.outside import run_outside
from fleetctl.evals.scenario import load_suite
from fleetctl.evals.score import Score, mean_score, score, shown_all, silence
from fleetctl.evals.tasks import parse_tasks
from fleetctl.gates.failure import GateError
from fleetctl.render.release import Engine
from fleetctl.spec.units import seconds

SEED = 1  # of whatever is drawn, such as the order of tools: the same for every build, so that scores can be compared
SHOWN = 5  # wrong answers that a failure shows

Say = Callable[[str], None]


@dataclass(frozen=True)
class Exam:
    """``name`` is `tools`, a suite outside of fleetctl, or what the file is called whose text is ``tasks``.

    ``concurrency`` questions are asked at a time; ``within`` seconds is all the time there is.
    """

    name: str
    concurrency: int
    within: float = 900.0
    max_tokens: int = 2048
    tasks: str | None = None


def score_of(exam: Exam, endpoint: Endpoint, say: Say) -> Score:
    """The score of whoever answers there. Raises EngineError when the time is over before the end, or nothing came."""
    if exam.tasks is not None:
        return _of_tasks(exam, exam.tasks, endpoint, say)
    if exam.name != "tools":
        return run_outside(exam.name, endpoint, concurrency=exam.concurrency, within=exam.within, seed=SEED, say=say)
    suite = load_suite()
    hear = _counting(exam.name, len(suite.scenarios), "scenarios", say)
    asked = dataclasses.replace(endpoint, max_tokens=exam.max_tokens)
    told = run_suite(suite, asked, concurrency=exam.concurrency, seed=SEED, heard=hear, within=exam.within)
    return _complete(exam, score(told) if told else None, len(suite.scenarios), endpoint)


def _of_tasks(exam: Exam, text: str, endpoint: Endpoint, say: Say) -> Score:
    tasks = parse_tasks(text, exam.name)
    hear = _counting(exam.name, len(tasks), "tasks", say)
    told = run_tasks(tasks, endpoint, concurrency=exam.concurrency, seed=SEED, heard=hear, within=exam.within)
    return _complete(exam, mean_score([one.outcome() for one in told]) if told else None, len(tasks), endpoint)


def _counting(name: str, total: int, what: str, say: Say) -> Callable[[object], None]:
    """Tells now and then how many were answered."""
    heard = 0

    def hear(_: object) -> None:
        nonlocal heard
        heard += 1
        if heard % 10 == 0:
            say(f"{name}: {heard} of {total} {what}")

    return hear


def _complete(exam: Exam, told: Score | None, total: int, endpoint: Endpoint) -> Score:
    """The score, if everything was asked and something answered."""
    answered = 0 if told is None else len(told.outcomes)
    if told is None or answered < total:
        raise EngineError(
            f"{answered} of {total} questions of {exam.name} were answered in {seconds(exam.within)}, "
            "which is all the time there is",
            exchanges=[] if told is None else exchanges_of(told),
        )
    # An engine that refuses tools answers with an error, and the test says so of each category.
    why = silence(told.outcomes, "not answered" if exam.tasks is None else "")
    if why:
        raise EngineError(
            f"{endpoint.url} answered none of the {total} questions: {why}",
            exchanges=exchanges_of(told)[:SHOWN],
        )
    return told


def exchanges_of(told: Score) -> list[Exchange]:
    """The requests whose answers were wrong, with those."""
    return [one.reply.exchange for one in told.failures if one.reply.exchange is not None]


def pass_score(engine: Engine, exam: Exam, floor: float, socket: Path, say: Say) -> dict[str, Any]:
    """Test an engine that is reached through a tunnel.

    Raises GateError, with some of what was wrong, when its score is below ``floor``.
    """
    endpoint = Endpoint(engine.url, engine.served_as[0], socket=socket, within=exam.within)
    try:
        told = score_of(exam, endpoint, say)
    except EngineError as error:
        raise GateError.of(engine.id, exam.name, error) from error
    say(f"{exam.name}: {told.total:.0f} of 100")
    if told.total < floor:
        lost = ", ".join(f"{name} {points:.0f}" for name, points in told.categories.items() if points < 100)
        right = sum(one.right for one in told.outcomes)
        of_what = lost or f"{right} of {len(told.outcomes)} tasks are right"
        raise GateError(
            engine.id,
            exam.name,
            f"it scored {told.total:.1f} of 100 and {floor:.1f} is wanted ({of_what})",
            answer="\n".join(shown_all(told.failures)[:SHOWN]),
            exchanges=exchanges_of(told),
        )
    return {"score": round(told.total, 1), "categories": told.categories}
