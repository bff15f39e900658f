"""Steps that bring weights to boxes: prove those of the box that sends, see that there is room, send, put in place."""

from __future__ import annotations

import time
from typing import Any

from fleetctl.errors import StepError
from fleetctl.plan.types import PlannedStep
from fleetctl.remote.errors import OpFailed
from fleetctl.spec.units import size
from fleetctl.steps.base import Context, Record, Step, register
from fleetctl.steps.transfer import ends_of, transfer

TRIES = 3  # at a transfer that breaks off between two boxes that are both there
BROKE_OFF = "broke off"
LOOK_LIMIT = 120.0


def look(context: Context, box: str, place: Record, commit: str = "") -> Record:
    """What a box says of a place, without reading weights."""
    told = context.boxes[box].call("weights_look", places=[place], commit=commit, timeout=LOOK_LIMIT)
    return dict(told[0])


def short(goal: Record) -> Record:
    """What tells where a goal is to be, without its files."""
    return {"commit": goal["commit"], "one_file": goal["one_file"]}


@register
class ProveWeights(Step):
    """The weights of a box are what its manifest says; where it has none, checksums are made and kept."""

    kind = "prove_weights"

    def check(self, context: Context, step: PlannedStep) -> bool:
        return bool(look(context, step.box, step.params["place"])["state"] == "proven")

    def do(self, context: Context, step: PlannedStep) -> Record:
        try:
            told = context.box(step).call("weights_prove", place=step.params["place"], on_event=context.progress(step))
        except OpFailed as failure:
            if failure.kind != "OpError":
                raise
            model = step.params["model"]
            raise StepError(
                failure.message,
                hint=f"`fleetctl weights verify {model}` says which box has it right; with --repair it is mended from "
                "there, with --accept what is there now is recorded",
            ) from failure
        return {key: told[key] for key in ("tree", "bytes", "files")}


@register
class WeightsRoom(Step):
    """The disk of a box has room for what is to arrive."""

    kind = "weights_room"

    def do(self, context: Context, step: PlannedStep) -> Record:
        params = step.params
        goal = context.boxes[params["from"]].call("weights_goal", place=params["place_from"])
        told = context.box(step).call("weights_room", place=params["place"], goal=goal)
        if not told["enough"]:
            raise StepError(
                f"{step.box}: the disk of {told['key']} has {size(told['free'])} free and {size(told['need'])} are "
                "needed; nothing was sent",
                hint="`fleetctl weights prune` shows weights that nothing uses",
            )
        return {"need": told["need"], "free": told["free"]}


@register
class SendWeights(Step):
    """A box gets weights from another. What arrived stays when the move is undone: the next one goes on from there."""

    kind = "send_weights"

    def check(self, context: Context, step: PlannedStep) -> bool:
        params = step.params
        here = look(context, params["from"], params["place_from"])
        there = look(context, step.box, params["place"], here.get("commit", ""))
        return bool(here["state"] == there["state"] == "proven" and here["tree"] == there["tree"])

    def do(self, context: Context, step: PlannedStep) -> Record:
        params, hear = step.params, context.progress(step)
        source, target = context.boxes[params["from"]], context.box(step)
        goal = source.call("weights_goal", place=params["place_from"])
        ends = ends_of(source, target, params["addresses"])
        began, received, sent = time.monotonic(), 0, 0
        kept = None
        for attempt in range(1, TRIES + 1):
            wanted = target.call("weights_begin", place=params["place"], goal=goal, on_event=hear)
            kept = wanted["kept"] if kept is None else kept
            if not wanted["parts"]:
                break
            what: dict[str, Any] = {
                **{key: params[key] for key in ("place_from", "place", "limit", "streams")},
                "goal": short(goal),
                "parts": wanted["parts"],
            }
            try:
                told = transfer(source, target, ends, what, hear)
            except OpFailed as failure:
                if attempt == TRIES or BROKE_OFF not in failure.message:
                    raise
                hear({"log": f"{failure.message}; going on from there"})
                continue
            received, sent = received + told["received"], sent + (told["sent"] or 0)
            break
        took = time.monotonic() - began
        target.call(
            "weights_arrive",
            place=params["place"],
            by=f"push from {params['from']}",
            **short(goal),
        )
        return {"received": received, "sent": sent, "kept": kept, "seconds": round(took, 2)}


@register
class AsideWeights(Step):
    """Weights that nothing uses are put aside, beside their place; undone, they are back."""

    kind = "aside_weights"

    def do(self, context: Context, step: PlannedStep) -> Record:
        return dict(context.box(step).call("weights_aside", one=step.params["one"]))

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        return dict(context.box(step).call("weights_back", one=step.params["one"]))


@register
class DeleteWeights(Step):
    """What was put aside is removed. There is no way back but to send or fetch it again."""

    kind = "delete_weights"

    def do(self, context: Context, step: PlannedStep) -> Record:
        return dict(context.box(step).call("weights_delete", one=step.params["one"], timeout=600))
