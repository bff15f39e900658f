"""The step that proves an engine: gates on the engine directly, through a tunnel to its box."""

from __future__ import annotations

from fleetctl.engine.client import EngineError
from fleetctl.errors import StepError
from fleetctl.gates.basic import pass_gates
from fleetctl.plan.types import PlannedStep
from fleetctl.steps.base import Context, Record, Step, log_of, register


@register
class Gate(Step):
    """Right model and context, and real completions, streaming and not."""

    kind = "gate"

    def do(self, context: Context, step: PlannedStep) -> Record:
        engine = context.engine(step)
        box = context.boxes[engine.head.box]
        with box.tunnel(engine.address, engine.port) as socket:
            try:
                return pass_gates(
                    engine, context.plan.release.gates, socket, lambda text: context.say(step, {"log": text})
                )
            except EngineError as error:
                box.call("ping", timeout=10)  # where the connection broke, it says so, and the gate is tried again
                answer = f"it answered: {error.answer[:400]}\n" if error.answer else ""
                raise StepError(
                    error.message, hint=answer + log_of(context, engine.head.box, engine.head.unit)
                ) from error
