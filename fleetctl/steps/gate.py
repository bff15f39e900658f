"""The step that proves an engine: gates on the engine directly, through a tunnel to its box."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from fleetctl.engine.client import EngineError
from fleetctl.errors import StepError
from fleetctl.gates.basic import pass_gates
from fleetctl.gates.probes import answers_of, pass_probes
from fleetctl.gates.tools import pass_tools
from fleetctl.plan.tool_scores import noted
from fleetctl.plan.types import PlannedStep
from fleetctl.render.release import Engine
from fleetctl.spec.fleet_gates import SameAnswersGate
from fleetctl.steps.base import Context, Record, Step, log_of, register
from fleetctl.steps.probe import answers_before


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
                if "tools" in step.params and gates.tools is not None:
                    passed["tools"] = pass_tools(engine, gates.tools, step.params["tools"], socket, say)
                    self._note(context, engine, passed["tools"])
                return passed
            except EngineError as error:
                box.call("ping", timeout=10)  # where the connection broke, it says so, and the gate is tried again
                answer = f"it answered: {error.answer[:400]}\n" if error.answer else ""
                raise StepError(
                    error.message, hint=answer + log_of(context, engine.head.box, engine.head.unit)
                ) from error

    def _compare(
        self, context: Context, engine: Engine, gate: SameAnswersGate, socket: Path, say: Callable[[str], None]
    ) -> Record:
        before = answers_before(context, engine.model)
        if before is None:
            say("gate same_answers: what served before was not heard, and nothing is compared")
            return {"same": None}
        say("gate same_answers")
        return pass_probes(engine.id, gate, before, answers_of(engine.url, engine.served_as[0], gate, socket))

    def _note(self, context: Context, engine: Engine, told: Record) -> None:
        """The score stays with the box that keeps the journal, for the next build to be compared with."""
        record = noted(engine, context.plan.release, told["score"], told["categories"], time.time())
        context.boxes[context.plan.lead].call("score_note", record=record)
