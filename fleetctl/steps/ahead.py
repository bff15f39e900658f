"""Steps for the new engines while the old ones serve: image there, weights complete, weights in the page cache."""

from __future__ import annotations

from fleetctl.errors import StepError
from fleetctl.plan.types import PlannedStep
from fleetctl.remote.errors import OpFailed
from fleetctl.steps.base import Context, Record, Step, register
from fleetctl.steps.weights import look


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
    """Weights are there, whole and what their checksums say, and the same on all boxes that have the model.

    As long as nothing was touched that costs no reading. Where there are no checksums yet they are made. The way back,
    and an engine that starts again as it was, need weights that are whole: what is not proven of them is only told.
    """

    kind = "verify_weights"
    once = True

    def do(self, context: Context, step: PlannedStep) -> Record:
        found: Record = {}
        for one in step.params["places"]:
            model, place = one["model"], one["place"]
            if _is_left(context, step, place):
                continue
            if step.params.get("lenient"):
                found[model] = _whole(context, step, model, place)
                continue
            try:
                told = context.box(step).call("weights_prove", place=place, on_event=context.progress(step))
            except OpFailed as failure:
                if failure.kind != "OpError":
                    raise
                raise StepError(
                    failure.message,
                    hint=f"`fleetctl weights push {model}` brings them from a box that has them, "
                    f"`fleetctl weights verify {model}` says what is wrong on which box",
                ) from failure
            found[model] = {key: told[key] for key in ("tree", "bytes", "read")}
            _refuse_others(context, step, model, told["tree"], one["others"])
        return found


def _whole(context: Context, step: PlannedStep, model: str, place: Record) -> Record:
    """Weights are there with all their parts, as sizes and headers tell. Raises StepError where they are not."""
    told = look(context, step.box, place)
    name = place.get("folder") or place["repo"]
    if told["state"] in ("missing", "broken"):
        why = "are not there" if told["state"] == "missing" else f"are not complete: {'; '.join(told['broken'][:5])}"
        raise StepError(
            f"the weights {name} {why}", hint=f"`fleetctl weights push {model}` brings them from a box that has them"
        )
    if told["state"] != "proven":
        why = f"`fleetctl weights verify {model}` says whether they are what they were"
        context.say(step, {"log": f"{step.box}: {name} is not proven now, and is used as it is; {why}"})
    return {"state": told["state"]}


def _is_left(context: Context, step: PlannedStep, place: Record) -> bool:
    """A hub id of which the cache has nothing, and whose engine may fetch it: there is nothing yet to prove."""
    if "folder" in place or place["env"].get("HF_HUB_OFFLINE") == "1":
        return False
    if look(context, step.box, place)["state"] != "missing":
        return False
    context.say(step, {"log": f"{step.box}: {place['repo']} is not in the cache yet, so it cannot be proven"})
    return True


def _refuse_others(context: Context, step: PlannedStep, model: str, tree: str, others: dict[str, Record]) -> None:
    """Raises StepError where another box has other weights for the model. The last box that is proven sees all."""
    for box, place in others.items():
        there = look(context, box, place)
        if there["state"] == "proven" and there["tree"] != tree:
            raise StepError(
                f"the weights of {model} are not the same on {step.box} and {box}",
                hint=f"`fleetctl weights verify {model}` says which files differ; with --from BOX --repair the right "
                "ones are sent to the other",
            )


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
