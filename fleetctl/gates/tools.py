"""The gate of tool use: the test of ``fleetctl eval tools`` against one engine, with a floor for its score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fleetctl.engine.client import EngineError
from fleetctl.evals.asking import Endpoint, run_suite
from fleetctl.evals.judge import Verdict
from fleetctl.evals.scenario import load_suite
from fleetctl.evals.score import Score, score
from fleetctl.render.release import Engine
from fleetctl.spec.fleet_gates import ToolsGate
from fleetctl.spec.units import seconds

SEED = 1  # of the order in which the tools are listed: the same for every build, so that scores can be compared
SHOWN = 5  # wrong answers that a failure shows


def score_of(endpoint: Endpoint, concurrency: int, within: float, say: Callable[[str], None]) -> Score:
    """The score of whoever answers there. Raises EngineError when the seconds ``within`` are over before the end."""
    suite, heard = load_suite(), 0

    def hear(verdict: Verdict) -> None:
        nonlocal heard
        heard += 1
        if heard % 10 == 0:
            say(f"tool use: {heard} of {len(suite.scenarios)} scenarios")

    told = run_suite(suite, endpoint, concurrency=concurrency, seed=SEED, heard=hear, within=within)
    if len(told) < len(suite.scenarios):
        raise EngineError(
            f"{len(told)} of {len(suite.scenarios)} scenarios of the tool-use test were answered in {seconds(within)}, "
            "which is all the time there is"
        )
    if all(verdict.reply.wrong.startswith("not answered") for verdict in told):
        raise EngineError(f"{endpoint.url} answered none of the {len(told)} scenarios: {told[0].reply.wrong}")
    return score(told)


def tool_score(engine: Engine, gate: ToolsGate, socket: Path, say: Callable[[str], None]) -> Score:
    """The score of an engine reached through a tunnel, asked as many scenarios at a time as it takes requests."""
    endpoint = Endpoint(engine.url, engine.served_as[0], socket=socket, max_tokens=gate.max_tokens, within=gate.within)
    return score_of(endpoint, gate.concurrency or engine.concurrency, gate.within, say)


def pass_tools(
    engine: Engine, gate: ToolsGate, floor: float, socket: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    """Test an engine. Raises EngineError, with some of what was wrong, when its score is below ``floor``."""
    told = tool_score(engine, gate, socket, say)
    say(f"tool use: {told.total:.0f} of 100")
    if told.total < floor:
        lost = ", ".join(f"{name} {points:.0f}" for name, points in told.categories.items() if points < 100)
        wrong = "\n".join(shown_all(told.failures)[:SHOWN])
        raise EngineError(
            f"{engine.id} failed the gate tools: it scored {told.total:.1f} of 100 and {floor:.1f} is wanted ({lost})",
            answer=wrong,
        )
    return {"score": round(told.total, 1), "categories": told.categories}


def shown(verdict: Verdict) -> str:
    """A wrong answer in one line: what was asked, what came, what is wrong with it."""
    reply = verdict.reply
    calls = "; ".join(f"{call.name[:80]}({call.arguments[:80]})" for call in reply.calls[:SHOWN])
    calls += f"; and {len(reply.calls) - SHOWN} more" if len(reply.calls) > SHOWN else ""
    came = calls or repr(reply.text[:80])
    return f"{verdict.scenario.id}: {verdict.why}" + (f"; it answered {came}" if reply.calls or reply.text else "")


def shown_all(failures: Sequence[Verdict]) -> list[str]:
    """A line for each wrong answer; those that failed alike without an answer (a server that refuses) share one."""
    alike: dict[str, list[Verdict]] = {}
    for verdict in failures:
        empty = not verdict.reply.calls and not verdict.reply.text
        alike.setdefault(verdict.why if empty else shown(verdict), []).append(verdict)
    return [
        shown(several[0]) if len(several) == 1 else f"{several[0].scenario.id} and {len(several) - 1} more: {why}"
        for why, several in alike.items()
    ]
