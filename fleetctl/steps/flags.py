"""The step that asks the engine in an image which flags it knows, before anything is stopped for it."""

from __future__ import annotations

from fleetctl.engine.runtimes.helptext import known_flags, said_of, wrong_words
from fleetctl.engine.runtimes.known import RUNTIMES
from fleetctl.errors import StepError
from fleetctl.plan.types import PlannedStep
from fleetctl.steps.base import Context, Record, Step, register


@register
class VerifyFlags(Step):
    """Every flag of an engine in a container, and every value that is listed, is one that it knows.

    One that cannot be asked is not held up: its start shows whether it knows them.
    """

    kind = "verify_flags"
    once = True

    def do(self, context: Context, step: PlannedStep) -> Record:
        params = step.params
        told = context.box(step).call("program_help", **params["question"])
        known, runtime = known_flags(told.get("text", "")), RUNTIMES[params["runtime"]]
        if not known:
            return {"why": told.get("why") or "it lists none"}
        build = f"{runtime.title} {told['version']}".strip()
        wrong = [said_of(one, build) for one in wrong_words(params["words"], known, runtime)]
        if wrong:
            raise StepError(f"model {params['model']} on {step.box}: {'; '.join(wrong)}")
        return {"flags": len(known)}
