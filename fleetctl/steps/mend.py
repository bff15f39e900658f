"""The step of ``fleetctl doctor --fix``: one safe repair on one box, with the commands that take it back."""

from __future__ import annotations

from fleetctl.plan.types import PlannedStep
from fleetctl.steps.base import Context, Record, Step, register

LIMIT = 600.0  # seconds of all commands of one repair


@register
class Mend(Step):
    """Runs what a finding's remedy says, and its commands of the way back when the repair is undone.

    The commands were chosen by what was seen, so that those of the way back give exactly that back.
    """

    kind = "mend"

    def prior(self, context: Context, step: PlannedStep) -> Record:
        units = [word for argv in step.params["do"] if argv[0] == "systemctl" for word in argv[2:] if word[0] != "-"]
        states = context.box(step).call("unit_states", units=units) if units else {}
        return {"states": {unit: [state["active"], state["enabled"]] for unit, state in states.items()}}

    def do(self, context: Context, step: PlannedStep) -> Record:
        box = context.box(step)
        told = box.call("remedy", commands=step.params["do"], timeout=LIMIT)
        ended = [
            one["pid"]
            for one in step.params["ends"]
            if box.call("end_process", pid=one["pid"], began=one["began"], engine=one["engine"])["ended"]
        ]
        return {"ran": told["ran"], "ended": ended}

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        told = context.box(step).call("remedy", commands=step.params["undo"], timeout=LIMIT)
        for one in step.params["ends"]:
            context.say(step, {"log": f"{step.box}: process {one['pid']} of {one['engine']} does not come back"})
        return {"ran": told["ran"]}
