"""Steps that bring a container image from box to box: see that there is room, send, compare the ID."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fleetctl.errors import FleetError, StepError
from fleetctl.plan.imagepush import ImageThere, missing_room
from fleetctl.plan.images import short
from fleetctl.plan.types import PlannedStep
from fleetctl.remote.connection import BoxConnection
from fleetctl.remote.errors import OpFailed
from fleetctl.remote.listening import PORT_WAIT, Listener
from fleetctl.remote.relay import relay
from fleetctl.steps.base import Context, Record, Step, register
from fleetctl.steps.transfer import ends_of

LOOK_LIMIT = 120.0
END_WAIT = 30.0  # seconds until the box that sends has noticed that all is sent
TRIES = 3  # at a transfer that breaks off between two boxes that are both there
BROKE_OFF = "broke off"
CALL_WAIT = 10.0  # seconds in which the box that is to get an image calls
LOOPBACK = "127.0.0.1"
Hear = Callable[[Record], None]


def look(context: Context, step: PlannedStep, reference: str) -> ImageThere:
    """What the box of a step says of an image."""
    asked = [[step.params["engine"], reference]]
    return ImageThere.model_validate(context.box(step).call("images_look", asked=asked, timeout=LOOK_LIMIT)[0])


@register
class ImageRoom(Step):
    """The disk of a box has room for an image that is to arrive."""

    kind = "image_room"

    def do(self, context: Context, step: PlannedStep) -> Record:
        there = look(context, step, step.params["reference"])
        short_of = there.problem or missing_room(step.params["size"], there)
        if short_of:
            raise StepError(f"{step.box}: {short_of}; nothing was sent")
        return {"rooms": [room.model_dump() for room in there.rooms]}


@register
class SendImage(Step):
    """A box gets an image from another. The image stays when the move is undone; a name goes back to what had it."""

    kind = "send_image"

    def check(self, context: Context, step: PlannedStep) -> bool:
        return bool(look(context, step, step.params["tag"] or step.params["id"]).id == step.params["id"])

    def prior(self, context: Context, step: PlannedStep) -> Record:
        return {"named": look(context, step, step.params["tag"]).id if step.params["tag"] else ""}

    def do(self, context: Context, step: PlannedStep) -> Record:
        params, hear = step.params, context.progress(step)
        began, told = time.monotonic(), {}
        if look(context, step, params["id"]).id != params["id"]:
            told = self._send(context, step, hear)
        if params["tag"]:
            context.box(step).call("image_tag", engine=params["engine"], identity=params["id"], name=params["tag"])
        arrived = look(context, step, params["tag"] or params["id"]).id
        if arrived != params["id"]:
            raise StepError(
                f"{step.box}: what arrived as {params['image']} is {short(arrived) or 'no image'}, and "
                f"{params['from']} has {short(params['id'])}",
                hint=f"look at both: {params['engine']} image inspect {params['image']}",
            )
        return {"seconds": round(time.monotonic() - began, 2), **told}

    def _send(self, context: Context, step: PlannedStep, hear: Hear) -> Record:
        source, target = context.boxes[step.params["from"]], context.box(step)
        for attempt in range(1, TRIES + 1):
            try:
                return transfer(source, target, step.params, hear)
            except OpFailed as failure:
                if attempt == TRIES or BROKE_OFF not in failure.message:
                    raise
                hear({"log": f"{failure.message}; it is sent again"})
        raise AssertionError("the last attempt returns or raises")

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        if prior["named"] and step.params["tag"]:
            params = step.params
            context.box(step).call("image_tag", engine=params["engine"], identity=prior["named"], name=params["tag"])
        return {}


def transfer(source: BoxConnection, target: BoxConnection, params: dict[str, Any], hear: Hear) -> Record:
    """Send an image over the link, or through this machine where the boxes cannot reach each other."""
    ends = ends_of(source, target, params["addresses"])
    key = secrets.token_hex(32)
    send = {"engine": params["engine"], "identity": params["id"], "key": key, "limit": params["limit"]}
    receive = {"engine": params["engine"], "key": key, "total": params["size"]}
    end = Listener(source, "image_send", {**send, "own": ends.source, "peer": ends.target, "wait": CALL_WAIT})
    with _with_cause(end):
        args = {**receive, "own": ends.target, "peer": ends.source, "port": end.port}
        told = target.call_with("image_receive", args, on_event=hear)
    if told["reached"]:
        _ended(end)
        return {"received": told["received"], "through": "link"}
    # Nobody calls it any more: it gives up by itself.
    hear({"log": f"{target.name} cannot reach {ends.source} ({told['why']}): the image goes through this machine"})
    local = {"own": LOOPBACK, "peer": LOOPBACK, "wait": PORT_WAIT}
    with (
        _listening(source, "image_send", {**send, **local}) as sends,
        _listening(target, "image_receive", {**receive, **local, "port": 0}, hear) as gets,
        source.tunnel(LOOPBACK, sends.port) as one_socket,
        target.tunnel(LOOPBACK, gets.port) as other_socket,
    ):
        return {"received": relay(one_socket, other_socket), "through": "this machine"}


@contextmanager
def _listening(box: BoxConnection, op: str, args: dict[str, Any], hear: Hear | None = None) -> Iterator[Listener]:
    """An end that listens for the length of the block. Raises what the op failed with, when it did."""
    end = Listener(box, op, args, hear)
    with _with_cause(end):
        yield end
    _ended(end)


@contextmanager
def _with_cause(end: Listener) -> Iterator[None]:
    """Where the block fails and the end too, what is raised is the cause: not that the connection broke off."""
    try:
        yield
    except FleetError as error:
        end.end(END_WAIT)
        if end.failed is not None and BROKE_OFF not in end.failed.message:
            raise end.failed from error
        raise


def _ended(end: Listener) -> None:
    """Wait for an end. Raises what it failed with."""
    end.end(END_WAIT)
    if end.failed is not None:
        raise end.failed
