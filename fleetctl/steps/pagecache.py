"""The step that makes memory free in the eyes of CUDA."""

from __future__ import annotations

from fleetctl.plan.types import PlannedStep
from fleetctl.steps.base import Context, Record, Step, register


@register
class DropPageCache(Step):
    """The page cache is dropped where that is needed and helps. Nothing to undo: it fills again by itself."""

    kind = "drop_page_cache"
    once_a_turn = True

    def do(self, context: Context, step: PlannedStep) -> Record:
        told = dict(context.box(step).call("drop_page_cache", need=step.params["need"], timeout=300))
        if not told["dropped"] and told["free"] < step.params["need"]:
            context.say(step, {"box": step.box, "log": f"the page cache was not dropped: {told['why']}"})
        return told
