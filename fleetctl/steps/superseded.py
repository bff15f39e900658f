"""Steps on foreign units that fleetctl replaces: off, seen to stay off, and given back."""

from __future__ import annotations

from typing import Any

from fleetctl.errors import StepError
from fleetctl.plan.types import PlannedStep
from fleetctl.steps.base import Context, Record, Step, register


def _states(context: Context, step: PlannedStep) -> dict[str, dict[str, Any]]:
    return dict(context.box(step).call("superseded_states", units=step.params["units"]))


def _awake(states: dict[str, dict[str, Any]]) -> list[str]:
    return [
        unit
        for unit, state in states.items()
        if state["active"] not in ("inactive", "failed")
        or state["enabled"] in ("enabled", "enabled-runtime")
        or state["wanted"]
    ]


def _give_back(context: Context, step: PlannedStep, prior: dict[str, dict[str, Any]]) -> Record:
    """Give units back, and say which of them did not come back: that is nothing to fail a move for."""
    told = dict(context.box(step).call("unsupersede", prior=prior))
    for unit, reason in told["not_restored"].items():
        context.say(step, {"log": f"{step.box}: {unit} is not as it was before fleetctl: {reason}"})
    return told


@register
class Supersede(Step):
    """``systemctl disable --now``, after their state was recorded on the box."""

    kind = "supersede"

    def check(self, context: Context, step: PlannedStep) -> bool:
        return not _awake(_states(context, step))

    def prior(self, context: Context, step: PlannedStep) -> Record:
        return {"states": _states(context, step)}

    def do(self, context: Context, step: PlannedStep) -> Record:
        box = context.box(step)
        box.call("superseded_record", states=_states(context, step))
        box.call("supersede", units=step.params["units"], limit=180)
        return {}

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        box = context.box(step)
        told = _give_back(context, step, prior["states"])
        box.call("superseded_forget", units=step.params["units"])
        return {"not_restored": told["not_restored"]}


@register
class RestoreSuperseded(Step):
    """Units that the target does not replace get back the enablement and activity they had before fleetctl."""

    kind = "restore_superseded"

    def prior(self, context: Context, step: PlannedStep) -> Record:
        return {"states": _states(context, step)}

    def do(self, context: Context, step: PlannedStep) -> Record:
        recorded = context.box(step).call("superseded_read")
        mine = {unit: recorded[unit] for unit in step.params["units"] if unit in recorded}
        return {**_give_back(context, step, mine), "recorded": mine}

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        context.box(step).call("supersede", units=step.params["units"], limit=180)
        return {}


@register
class RecheckSuperseded(Step):
    """Nothing has brought them back meanwhile: a supervisor that does would stop the new engine."""

    kind = "recheck_superseded"

    def do(self, context: Context, step: PlannedStep) -> Record:
        states = _states(context, step)
        awake = _awake(states)
        if awake:
            triggers = sorted({name for unit in awake for name in states[unit]["triggered_by"]})
            who = f" (triggered by {', '.join(triggers)})" if triggers else ""
            raise StepError(
                f"{step.box}: {', '.join(awake)} came back after it was disabled and stopped{who}",
                hint="something restarts it: list that supervisor under superseded: too",
            )
        return {}
