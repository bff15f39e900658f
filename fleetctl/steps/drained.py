"""Steps on the note that a box keeps while an operator has it out of the proxy."""

from __future__ import annotations

import time

from fleetctl.plan.types import PlannedStep
from fleetctl.steps.base import Context, Record, Step, register


class _Note(Step):
    """What both have in common: undo puts back what was noted before."""

    def prior(self, context: Context, step: PlannedStep) -> Record:
        return {"note": context.box(step).call("drained_read")}

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        context.box(step).call("drained_write", note=prior["note"])
        return {}


@register
class MarkDrained(_Note):
    """Note who drained the box and when; the first note of a box stays."""

    kind = "mark_drained"

    def check(self, context: Context, step: PlannedStep) -> bool:
        return context.box(step).call("drained_read") is not None

    def do(self, context: Context, step: PlannedStep) -> Record:
        note = {"since": round(time.time(), 3), "by": step.params["by"]}
        context.box(step).call("drained_write", note=note)
        return note


@register
class ForgetDrained(_Note):
    """The box is in use again."""

    kind = "forget_drained"

    def check(self, context: Context, step: PlannedStep) -> bool:
        return context.box(step).call("drained_read") is None

    def do(self, context: Context, step: PlannedStep) -> Record:
        context.box(step).call("drained_write", note=None)
        return {}
