"""Steps of setup and teardown: a part of a box made so or taken back, and the direct link, which is proved first."""

from __future__ import annotations

import contextlib

from fleetctl.errors import BoxError, StepError
from fleetctl.plan.types import PlannedStep
from fleetctl.remote.program import PROGRAM_FOLDER, installed_path, installed_program
from fleetctl.steps.base import Context, Record, Step, register


def _whole(context: Context, step: PlannedStep) -> Record:
    """The part with the program in it, too long for the journal. Raises StepError for that of another version."""
    part: Record = dict(step.params["part"])
    files = []
    for file in part.get("files", []):
        if file["path"].startswith(f"{PROGRAM_FOLDER}/"):
            if file["path"] != installed_path():
                raise StepError(
                    f"{step.box}: {file['path']} is the program of another version of fleetctl",
                    hint="finish this with the version that began it, or undo it: fleetctl rollback",
                )
            file = {**file, "content": installed_program().decode()}
        files.append(file)
    return {**part, **({"files": files} if files else {})}


def _told(context: Context, step: PlannedStep, left: list[str]) -> Record:
    """What could not be taken back, said to the operator and kept in the journal."""
    for why in left:
        context.say(step, {"log": f"{step.box}: {why}"})
    return {"left": left}


@register
class SetUp(Step):
    """A part is there: files, packages, a key, an environment, an image. Undo takes back what was put there."""

    kind = "set_up"

    def check(self, context: Context, step: PlannedStep) -> bool:
        return bool(context.box(step).call("setup_so", parts=[step.params["part"]])[0])

    def do(self, context: Context, step: PlannedStep) -> Record:
        way = "setup_fetch" if step.params["part"]["kind"] == "image" else "setup_do"
        told = context.box(step).call(way, part=_whole(context, step), on_event=context.progress(step))
        return dict(told)

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        told = context.box(step).call("setup_undo", part=step.params["part"]["part"], on_event=context.progress(step))
        return _told(context, step, told["left"])


@register
class TakeDown(Step):
    """A part that setup put there is gone, and what was before is back. Undo puts it there again."""

    kind = "take_down"

    def check(self, context: Context, step: PlannedStep) -> bool:
        return step.params["part"]["part"] not in context.box(step).call("setup_record")

    def do(self, context: Context, step: PlannedStep) -> Record:
        told = context.box(step).call("setup_undo", part=step.params["part"]["part"], on_event=context.progress(step))
        return _told(context, step, told["left"])

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        context.box(step).call("setup_do", part=_whole(context, step), on_event=context.progress(step))
        return {}


@register
class TryLink(Step):
    """The interface has the link's address, on trial: the box takes it back by itself unless it is kept."""

    kind = "link_try"

    def check(self, context: Context, step: PlannedStep) -> bool:
        return bool(context.box(step).call("setup_link_tried", part=step.params["part"]))

    def do(self, context: Context, step: PlannedStep) -> Record:
        context.box(step).call("setup_link_try", part=step.params["part"], limit=step.params["limit"])
        return {}

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        box = context.box(step)
        box.call("setup_link_back")
        return _told(context, step, box.call("setup_undo", part=step.params["part"]["part"])["left"])


@register
class KeepLink(Step):
    """The link is proved: a new SSH connection, every neighbour, packets as large as the MTU. Then it stays."""

    kind = "link_keep"

    def check(self, context: Context, step: PlannedStep) -> bool:
        return bool(context.box(step).call("setup_so", parts=[step.params["part"]])[0])

    def do(self, context: Context, step: PlannedStep) -> Record:
        box, part = context.box(step), step.params["part"]
        try:
            box.prove_reachable()
        except BoxError as error:
            self._back(context, step)
            raise StepError(
                f"{step.box}: with the link's address there is no new SSH connection, so it was taken back: "
                f"{error.message}",
                hint=error.hint,
            ) from error
        wrong = box.call(
            "setup_link_reach",
            interface=part["interface"],
            address=part["address"],
            peers=step.params["peers"],
            mtu=part["mtu"],
        )
        if wrong:
            self._back(context, step)
            raise StepError(
                f"{step.box}: the link does not work, so it was taken back: {'; '.join(wrong)}",
                hint="is the cable in, and are link: and interface: of both boxes right in fleet.yaml?",
            )
        box.call("setup_link_keep", part=part)
        return {"reached": step.params["peers"]}

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        return _told(context, step, context.box(step).call("setup_undo", part=step.params["part"]["part"])["left"])

    def _back(self, context: Context, step: PlannedStep) -> None:
        with contextlib.suppress(BoxError):  # then the box does it by itself
            context.box(step).call("setup_link_back", timeout=step.params["limit"])


@register
class Strip(Step):
    """No unit of fleetctl runs, would run at boot or has a file; units that it had replaced are given back."""

    kind = "strip"

    def check(self, context: Context, step: PlannedStep) -> bool:
        told = context.box(step).call("setup_strip_look")
        return not told["files"] and not told["superseded"]

    def prior(self, context: Context, step: PlannedStep) -> Record:
        return dict(context.box(step).call("setup_strip_look"))

    def do(self, context: Context, step: PlannedStep) -> Record:
        return dict(context.box(step).call("setup_strip", move=context.plan.move))

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        context.box(step).call("setup_unstrip", move=context.plan.move, prior=prior)
        return {}


@register
class PutAside(Step):
    """/etc/fleetctl is out of its place. It goes for good with the journals, once the teardown is through."""

    kind = "put_aside"

    def check(self, context: Context, step: PlannedStep) -> bool:
        return not context.box(step).call("setup_strip_look")["etc"]

    def do(self, context: Context, step: PlannedStep) -> Record:
        context.box(step).call("setup_put_aside", move=context.plan.move)
        return {}

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        context.box(step).call("setup_put_back", move=context.plan.move)
        return {}
