"""Steps about container images: every box has the right one before anything that serves is stopped."""

from __future__ import annotations

from fleetctl.errors import StepError
from fleetctl.plan.images import short
from fleetctl.plan.types import PlannedStep
from fleetctl.steps.base import Context, Record, Step, register


def _id_on(context: Context, box: str, engine: str, reference: str) -> str | None:
    """ID of the image on a box; None where it has none."""
    built = context.boxes[box].call("builds", binaries=[], images=[[engine, reference]])[reference]
    return None if built is None else str(built["digest"])


@register
class HaveImage(Step):
    """The box has the container image; pulled when it has not. It stays there when the move is undone."""

    kind = "have_image"

    def check(self, context: Context, step: PlannedStep) -> bool:
        return _id_on(context, step.box, step.params["engine"], step.params["reference"]) is not None

    def do(self, context: Context, step: PlannedStep) -> Record:
        engine, image, reference = (step.params[name] for name in ("engine", "image", "reference"))
        ran = context.box(step).call("image_pull", engine=engine, image=image, limit=step.params["limit"])
        push = f"`fleetctl images push {image} {step.box}` copies it from a box that has it, without a registry"
        if ran["rc"] != 0:
            last = " ".join(ran["err"].split())[-300:]
            raise StepError(
                f"{step.box}: {engine} cannot pull {image}: {last}",
                hint=f"{push}; or check image: of the model, and that {step.box} reaches the registry ({engine} login)",
            )
        if _id_on(context, step.box, engine, reference) is None:
            found = _id_on(context, step.box, engine, image)
            raise StepError(
                f"{step.box}: {image} is {short(found or '?')} in its registry, and id: of the model says "
                f"{short(reference)}",
                hint=f"{push}; or correct id: in fleet.yaml",
            )
        return {"pulled": image}


@register
class SameImage(Step):
    """A name that could be another image on another box is the same one on all of them."""

    kind = "same_image"

    def do(self, context: Context, step: PlannedStep) -> Record:
        engine, image = step.params["engine"], step.params["image"]
        found = {box: _id_on(context, box, engine, image) for box in step.params["boxes"]}
        if len(set(found.values())) > 1:
            told = ", ".join(f"{short(one) if one else 'none'} on {box}" for box, one in found.items())
            first, *others = found
            raise StepError(
                f"the image {image} is not the same on its boxes: {told}",
                hint=f"`fleetctl images push {image} --from {first} {' '.join(others)}` makes them the same",
            )
        return {"id": next(iter(found.values()))}


@register
class TryContainer(Step):
    """The container of an engine can be made: options, devices and mounts are right. The engine is not started."""

    kind = "try_container"
    once = True

    def do(self, context: Context, step: PlannedStep) -> Record:
        params = step.params
        context.box(step).call("container_try", words=params["words"], folders=params["folders"])
        return {}
