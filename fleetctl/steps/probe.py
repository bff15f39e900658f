"""The step that asks the engine that serves, for the new one to be compared with it."""

from __future__ import annotations

from fleetctl.engine.client import EngineError
from fleetctl.gates.probes import answers_of
from fleetctl.plan.types import PlannedStep
from fleetctl.steps.base import Context, Record, Step, register


@register
class AskCurrent(Step):
    """The prompts of gates.same_answers, to an engine that serves. It may not answer: then nothing is compared."""

    kind = "ask_current"
    once = True

    def do(self, context: Context, step: PlannedStep) -> Record:
        gate, params = context.plan.release.gates.same_answers, step.params
        assert gate is not None
        try:
            with context.box(step).tunnel(params["address"], params["port"]) as socket:
                told = answers_of(params["url"], params["served_as"], gate, socket)
                return {"answers": [one.text for one in told]}
        except EngineError as error:
            context.say(
                step, {"log": f"{params['engine']} did not answer: {error.message}; nothing is compared with it"}
            )
            return {"answers": None, "why": error.message}


def answers_before(context: Context, model: str) -> list[str] | None:
    """What the engine that served a model said in this move; None: it was not asked, or did not answer."""
    asked = [
        step.id for step in context.plan.steps if step.kind == AskCurrent.kind and step.params.get("model") == model
    ]
    if not asked:
        return None
    journal = context.boxes[context.plan.lead].call("journal_read", move=context.plan.move)
    for record in journal["records"] if journal else []:
        if record.get("type") == "done" and record.get("step") == asked[0]:
            told = (record.get("result") or {}).get("answers")
            return None if told is None else [str(one) for one in told]
    return None
