"""Steps for the new engines while the old ones serve: image there, weights complete, weights in the page cache."""

from __future__ import annotations

from fleetctl.plan.types import PlannedStep
from fleetctl.steps.base import Context, Record, Step, register


@register
class FetchWeights(Step):
    """The box has the weights of a hub id; fetched when it has not. They stay there when the move is undone."""

    kind = "fetch_weights"
    once = True

    def do(self, context: Context, step: PlannedStep) -> Record:
        params = step.params
        kept = context.generation_files(params["generation"]) + params["secrets"] if params["secrets"] else ""
        told = context.box(step).call(
            "fetch_weights",
            timeout=params["limit"] + 30,
            secrets=kept,
            **{name: params[name] for name in ("python", "repo", "revision", "env", "limit")},
        )
        if "left" in told:
            context.say(step, {"log": f"{step.box}: {params['repo']} is left to the engine to fetch: {told['left']}"})
        return dict(told)


@register
class VerifyWeights(Step):
    """Every weight file that the folders name is there, and as long as its own header says."""

    kind = "verify_weights"
    once = True

    def do(self, context: Context, step: PlannedStep) -> Record:
        return dict(context.box(step).call("weights_check", paths=step.params["paths"]))


@register
class ReadAhead(Step):
    """Weights are read once at the lowest disk priority, so that the engine finds them in memory."""

    kind = "read_ahead"
    once = True

    def do(self, context: Context, step: PlannedStep) -> Record:
        told = context.box(step).call(
            "read_ahead", paths=step.params["paths"], limit=step.params["limit"], on_event=context.progress(step)
        )
        return dict(told)
