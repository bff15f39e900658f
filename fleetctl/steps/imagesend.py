"""Steps that bring a container image from box to box: see that there is room, send, compare the ID."""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fleetctl.errors import BoxError, FleetError, StepError
from fleetctl.plan.imagepush import ImageThere, missing_room
from fleetctl.plan.images import short
from fleetctl.plan.types import PlannedStep
from fleetctl.remote.connection import BoxConnection
from fleetctl.remote.errors import OpFailed
from fleetctl.remote.relay import relay
from fleetctl.steps.base import Context, Record, Step, register
from fleetctl.steps.transfer import ends_of

LOOK_LIMIT = 120.0
PORT_WAIT = 30.0  # seconds until a box that listens has named its port
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
    with _listening(source, "image_send", {**send, "own": ends.source, "peer": ends.target, "wait": CALL_WAIT}) as end:
        args = {**receive, "own": ends.target, "peer": ends.source, "port": end.port}
        told = target.call_with("image_receive", args, on_event=hear)
        if told["reached"]:
            return {"received": told["received"], "through": "link"}
        end.awaited = False  # nobody calls: it gives up by itself
    hear({"log": f"{target.name} cannot reach {ends.source} ({told['why']}): the image goes through this machine"})
    local = {"own": LOOPBACK, "peer": LOOPBACK, "wait": PORT_WAIT}
    with (
        _listening(source, "image_send", {**send, **local}) as end,
        _listening(target, "image_receive", {**receive, **local, "port": 0}, hear) as other,
        source.tunnel(LOOPBACK, end.port) as one_socket,
        target.tunnel(LOOPBACK, other.port) as other_socket,
    ):
        return {"received": relay(one_socket, other_socket), "through": "this machine"}


@dataclass
class _End:
    """An end that listens: its port, and whether its own end is waited for."""

    port: int
    awaited: bool = True


@contextmanager
def _listening(box: BoxConnection, op: str, args: dict[str, Any], hear: Hear | None = None) -> Iterator[_End]:
    """An end that listens for the length of the block. Raises what the op failed with, when it did.

    Where the block fails too, what is raised is the cause: not that the connection broke off.
    """
    said: queue.SimpleQueue[int | FleetError] = queue.SimpleQueue()
    failed: list[FleetError] = []

    def on_event(event: Record) -> None:
        if "port" in event:
            said.put(int(event["port"]))
        elif hear is not None:
            hear(event)

    def serve() -> None:
        try:
            box.call_with(op, args, on_event=on_event)
        except FleetError as error:
            failed.append(error)
            said.put(error)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        first = said.get(timeout=PORT_WAIT)
    except queue.Empty:
        raise BoxError(box.name, f"it did not begin to listen within {PORT_WAIT:g} s") from None
    if isinstance(first, FleetError):
        raise first
    end = _End(first)
    try:
        yield end
    except FleetError as error:
        thread.join(END_WAIT)
        if failed and BROKE_OFF not in failed[0].message:
            raise failed[0] from error
        raise
    if end.awaited:
        thread.join(END_WAIT)
        if failed:
            raise failed[0]
