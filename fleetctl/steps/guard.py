"""Steps on the guard of a box: stopped before its files change or go, started when the box is as it shall be."""

from __future__ import annotations

from fleetctl.plan.types import PlannedStep
from fleetctl.remote.errors import OpFailed
from fleetctl.steps.base import Context, Record, Step, register, with_log

STOP_LIMIT = 30.0  # seconds; it lets the proxy hear that its copy is in again


class _OnGuard(Step):
    """What both have in common: how the guard was before is what undo brings back."""

    def _state(self, context: Context, step: PlannedStep) -> str:
        unit = step.params["unit"]
        return str(context.box(step).call("unit_states", units=[unit])[unit]["active"])

    def prior(self, context: Context, step: PlannedStep) -> Record:
        return {"active": self._state(context, step)}


@register
class StopGuard(_OnGuard):
    """``systemctl stop``; a guard does nothing during a move in any case. Undo starts it with its earlier files."""

    kind = "stop_guard"

    def check(self, context: Context, step: PlannedStep) -> bool:
        return self._state(context, step) == "inactive"

    def do(self, context: Context, step: PlannedStep) -> Record:
        told = context.box(step).call("unit_stop", unit=step.params["unit"], limit=STOP_LIMIT)
        return {"state": told["active"]}

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        if prior["active"] == "active":
            context.box(step).call("unit_start", unit=step.params["unit"])
        return {}


@register
class StartGuard(_OnGuard):
    """The guard runs, with the files of this generation."""

    kind = "start_guard"

    def do(self, context: Context, step: PlannedStep) -> Record:
        unit, box = step.params["unit"], context.box(step)
        try:
            told = box.call("unit_start", unit=unit, wait=True)
        except OpFailed as failure:
            raise with_log(context, step.box, unit, failure) from failure
        return {"state": told["active"]}

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        context.box(step).call("unit_stop", unit=step.params["unit"], limit=STOP_LIMIT)
        return {}
