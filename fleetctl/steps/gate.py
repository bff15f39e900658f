"""The step that proves an engine: gates on the engine directly, through a tunnel to its box."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from fleetctl.engine.client import EngineError
from fleetctl.errors import BoxError, StepError
from fleetctl.gates.basic import pass_gates
from fleetctl.gates.failure import GateError
from fleetctl.gates.probes import NAME, answers_of, pass_probes
from fleetctl.gates.scored import Exam, pass_score
from fleetctl.plan.scores import noted, suites_of, wanted_scores
from fleetctl.plan.types import PlannedStep
from fleetctl.render.release import Engine
from fleetctl.spec.fleet_gates import SameAnswersGate, ToolsGate
from fleetctl.steps.base import Context, Record, Step, log_of, register
from fleetctl.steps.probe import answers_before

MOST_KEPT = 2 << 20  # characters of requests and responses that are kept of one failure


@register
class Gate(Step):
    """Right model and context, real completions, and what else the release asks for: gates that take longer."""

    kind = "gate"

    def do(self, context: Context, step: PlannedStep) -> Record:
        engine = context.engine(step)
        box = context.boxes[engine.head.box]
        gates = context.plan.release.gates

        def say(text: str) -> None:
            context.say(step, {"log": text})

        with box.tunnel(engine.address, engine.port) as socket:
            try:
                passed = pass_gates(engine, gates, socket, say, long_context=step.params.get("long_context", False))
                if "probes" in step.params and gates.same_answers is not None:
                    passed["same_answers"] = self._compare(context, engine, gates.same_answers, socket, say)
                scores = self._scores(context, step, engine, socket, say)
                return {**passed, **({"scores": scores} if scores else {})}
            except EngineError as error:
                box.call("ping", timeout=10)  # where the connection broke, it says so, and the gate is tried again
                self._fail(context, step, engine, error)

    def _compare(
        self, context: Context, engine: Engine, gate: SameAnswersGate, socket: Path, say: Callable[[str], None]
    ) -> Record:
        before = answers_before(context, engine.model)
        if before is None:
            say("gate same_answers: what served before was not heard, and nothing is compared")
            return {"same": None}
        say("gate same_answers")
        try:
            now = answers_of(engine.url, engine.served_as[0], gate, socket)
        except EngineError as error:
            raise GateError.of(engine.id, NAME, error) from error
        return pass_probes(engine.id, gate, before, now)

    def _scores(
        self, context: Context, step: PlannedStep, engine: Engine, socket: Path, say: Callable[[str], None]
    ) -> Record:
        """Test what the plan wants tested. Each score stays with the box that keeps the journal, for the next build to
        be compared with it."""
        wanted, found = wanted_scores(step.params), Record()
        for suite in suites_of(context.plan.release, engine):
            if suite.key not in wanted:
                continue
            gate = suite.gate
            longest = {"max_tokens": gate.max_tokens} if isinstance(gate, ToolsGate) else {}
            exam = Exam(suite.name, gate.concurrency or engine.concurrency, gate.within, tasks=suite.tasks, **longest)
            told = found[suite.key] = pass_score(engine, exam, wanted[suite.key], socket, say)
            record = noted(engine, context.plan.release, suite.key, told["score"], told["categories"], time.time())
            context.boxes[context.plan.lead].call("score_note", record=record)
        return found

    def _fail(self, context: Context, step: PlannedStep, engine: Engine, error: EngineError) -> NoReturn:
        answer = f"it answered: {error.answer[:400]}\n" if error.answer else ""
        kept = self._keep(context, step, error) if isinstance(error, GateError) and error.exchanges else ""
        log = log_of(context, engine.head.box, engine.head.unit)
        raise StepError(error.message, hint=f"{answer}{kept}{log}") from error

    def _keep(self, context: Context, step: PlannedStep, error: GateError) -> str:
        """Have the requests and responses kept with the journal. Where, in a line."""
        lead, move = context.plan.lead, context.plan.move
        exchanges: list[Record] = []
        size = 0
        for exchange in error.exchanges:
            told = exchange.told()
            size += len(told["request"]["text"]) + len(told["response"]["text"])
            if exchanges and size > MOST_KEPT:
                break
            exchanges.append(told)
        failure = {
            "step": step.id,
            "engine": step.params["engine"],
            "gate": error.gate,
            "why": error.why,
            "at": round(time.time(), 3),
            "exchanges": exchanges,
            "more": len(error.exchanges) - len(exchanges),
        }
        try:
            path = context.boxes[lead].call("gate_keep", move=move, failure=failure)["path"]
        except BoxError as failed:
            return f"what was asked and answered could not be kept on {lead}: {failed.message}\n"
        return f"what was asked and answered is kept in {path} on {lead}: `fleetctl history {move}` shows it\n"
