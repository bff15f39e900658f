"""The step that measures an engine: started once, watched, stopped again."""

from __future__ import annotations

from fleetctl.errors import StepError
from fleetctl.plan.types import PlannedStep
from fleetctl.remote.errors import OpFailed
from fleetctl.steps.base import Context, Record, Step, register, with_log


@register
class Trial(Step):
    """The unit of the trial is written, started and watched until it serves; then it goes, with all that it held.

    It is over within this step, whether it went well or not. Undo is for one that nobody was there to end.
    """

    kind = "trial"
    once = True

    def do(self, context: Context, step: PlannedStep) -> Record:
        params, trial, box = step.params, step.params["trial"], context.box(step)
        self._end(context, step, need=0)
        try:
            seen = box.call(
                "trial_run",
                unit=trial["unit"],
                content=trial["content"],
                url=f"{trial['url']}/health",
                limit=params["limit"],
                on_event=context.progress(step),
            )
        except OpFailed as failure:
            shown = with_log(context, step.box, trial["unit"], failure)
            self._end(context, step, need=0)
            if failure.kind == "Cancelled":
                raise
            hint = f"was the share {trial['share']:g} too small for it? --share gives it another\n{shown.hint or ''}"
            raise StepError(f"{params['engine']} did not start to be measured: {failure.message}", hint=hint) from None
        self._end(context, step, need=params["need"])
        return {"trial": seen}

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        self._end(context, step, need=0)
        return {}

    def _end(self, context: Context, step: PlannedStep, need: int) -> None:
        trial, box = step.params["trial"], context.box(step)
        box.call("trial_end", unit=trial["unit"], limit=step.params["stop_limit"] + 30)
        limit = step.params["free_within"]
        box.call("await_free", engines=[trial["engine"]], ports=[], need=need, limit=limit)
