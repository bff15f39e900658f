"""Steps that get weights from outside of the fleet onto one box: from the hub there, or by way of this machine."""

from __future__ import annotations

from pathlib import Path

from fleetctl.checkpoint.fetch import fetch_model
from fleetctl.errors import StepError
from fleetctl.plan.types import PlannedStep
from fleetctl.render.release import File
from fleetctl.spec.secret import Secret
from fleetctl.spec.units import size
from fleetctl.steps.base import Context, Record, Step, register
from fleetctl.steps.upload import for_folder, here, local_goal, upload
from fleetctl.steps.weights import short


def with_secrets(context: Context, step: PlannedStep) -> dict[str, str]:
    """The environment for the hub, with its secrets (a token) read at this moment; they are in no journal."""
    env = dict(step.params["env"])
    for name, told in step.params["secrets"].items():
        secret = Secret.model_validate(told)
        asked = File(path="the request to the hub", content=f"@secret:{name}@", secrets={name: secret})
        env[name] = context.fill(asked)
    return env


@register
class PullWeights(Step):
    """A box fetches a model from the hub with the huggingface_hub of its engine. It stays when undone."""

    kind = "pull_weights"

    def do(self, context: Context, step: PlannedStep) -> Record:
        params, box = step.params, context.box(step)
        told = box.call_with(
            "fetch_weights",
            {
                "python": params["python"],
                "repo": params["place"]["repo"],
                "revision": params["place"]["revision"],
                "env": with_secrets(context, step),
                "secrets": "",
                "limit": params["limit"],
            },
            timeout=params["limit"] + 30,
        )
        if "left" in told:
            raise StepError(f"{step.box}: {told['left']}", hint="--here fetches it on this machine and sends it there")
        proven = box.call("weights_prove", place=params["place"], by="pull", on_event=context.progress(step))
        return {"path": told["path"], **{key: proven[key] for key in ("tree", "bytes", "commit")}}


@register
class UploadWeights(Step):
    """A box gets a model from a folder of this machine, or from the hub by way of it. It stays when undone."""

    kind = "upload_weights"

    def do(self, context: Context, step: PlannedStep) -> Record:
        params, box, hear = step.params, context.box(step), context.progress(step)
        if params["repo"]:
            hear({"log": f"fetching {params['repo']}"})
            folder = fetch_model(params["repo"], params["revision"] or None, with_secrets(context, step))
        else:
            folder = Path(params["folder"])
        call = here(hear)
        goal, paths = local_goal(call, folder, of_hub=bool(params["repo"]))
        if "folder" in params["place"]:
            goal = for_folder(goal)
        room = box.call("weights_room", place=params["place"], goal=goal)
        if not room["enough"]:
            raise StepError(
                f"{step.box}: the disk of {room['key']} has {size(room['free'])} free and {size(room['need'])} are "
                "needed; nothing was sent",
                hint="`fleetctl weights prune` shows weights that nothing uses",
            )
        wanted = box.call("weights_begin", place=params["place"], goal=goal, on_event=hear)
        received = 0
        if wanted["parts"]:
            received = upload(box, params["place"], goal, paths, params["limit"], hear)["received"]
        box.call("weights_arrive", place=params["place"], by="pull", **short(goal))
        return {"received": received, "kept": wanted["kept"], "tree": goal["tree"]}
