"""Steps on LoRA adapters: files to a box, its index, engines that load and forget, names in the proxy."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fleetctl.errors import StepError
from fleetctl.plan.adapters import asked_at
from fleetctl.plan.types import PlannedStep
from fleetctl.remote.connection import BoxConnection
from fleetctl.remote.errors import OpFailed
from fleetctl.render.release import Engine
from fleetctl.steps.base import Context, Record, Step, register

PIECE = 2 * 1024 * 1024  # bytes sent at a time
TALK_EVERY = 16  # pieces between two words on how far it is


def send(context: Context, step: PlannedStep, items: list[Record]) -> int:
    """Have a box have adapters whole. Returns the bytes that were sent. Raises StepError where nobody has one."""
    box, sent = context.box(step), 0
    for one in items:
        files = {name: [size, sha] for name, (size, sha) in one["files"].items()}
        told = box.call("adapter_sent", model=one["model"], name=one["name"], files=files)
        if told["there"]:
            continue
        for file, (size, _) in files.items():
            offset = told["sent"][file] if told["sent"][file] <= size else 0
            for number, piece in enumerate(_pieces(context, one, file, offset, size)):
                if context.stopped():
                    raise OpFailed(step.box, "adapter_put", "Cancelled", "sending was stopped")
                data = base64.b64encode(piece).decode("ascii")
                box.call("adapter_put", digest=one["digest"], file=file, offset=offset, data=data)
                offset += len(piece)
                sent += len(piece)
                if number % TALK_EVERY == TALK_EVERY - 1:
                    context.say(step, {"log": f"{one['name']}: {offset / 1e6:.0f} of {size / 1e6:.0f} MB"})
        box.call("adapter_seal", model=one["model"], name=one["name"], files=files)
    return sent


def _pieces(context: Context, one: Record, file: str, offset: int, size: int) -> Iterator[bytes]:
    """The rest of a file, from the operator's folder or from a box that has it."""
    folder = Path(one["from"]) if "from" in one else None
    if folder is not None and (folder / file).is_file():
        with (folder / file).open("rb") as source:
            source.seek(offset)
            while piece := source.read(PIECE):
                yield piece
        return
    for name in one.get("boxes", []):
        box = context.boxes.get(name)
        while box is not None and offset < size:
            told = box.call(
                "adapter_read", model=one["model"], name=one["name"], digest=one["digest"], file=file, offset=offset
            )
            piece = base64.b64decode(told["data"])
            if not piece:
                break
            offset += len(piece)
            yield piece
        if offset >= size:
            return
    raise StepError(
        f"{one['name']}: {file} is not all on the box, and {folder or 'no other box'} does not have it",
        hint="finish it on the machine that has the folder, or `fleetctl rollback` undoes it",
    )


def _plain(items: Sequence[Record]) -> list[Record]:
    return [{key: one[key] for key in ("model", "name", "digest")} for one in items]


def _asked(engine: Engine) -> dict[str, Any]:
    """What the ops on an engine's adapters ask it by."""
    return {**asked_at(engine), "model": engine.model}


def load(context: Context, step: PlannedStep, engine: Engine, items: list[Record] | None) -> Record:
    """Have an engine load adapters (None: all that its box keeps). Raises StepError with the engine's own words."""
    more: dict[str, Any] = {"max_rank": engine.max_lora_rank or 0} if items is None else {"items": _plain(items)}
    if engine.task != "generate":
        more["task"] = engine.task
    try:
        told = context.boxes[engine.head.box].call("adapters_load", **_asked(engine), limit=engine.load_limit, **more)
    except OpFailed as failure:
        if failure.kind != "OpError":
            raise
        raise StepError(f"{engine.id}: {failure.reason}") from failure
    if told["down"]:
        context.say(step, {"log": f"{engine.id} does not run: it loads them when it starts"})
    if told["left_out"]:
        left = ", ".join(told["left_out"])
        context.say(step, {"log": f"{engine.id} is without {left}: not whole there, or of a higher rank than it takes"})
    return dict(told)


@register
class SendAdapters(Step):
    """The files are on the box, byte for byte. No engine reads them yet."""

    kind = "send_adapters"

    def prior(self, context: Context, step: PlannedStep) -> Record:
        box = context.box(step)
        there = [
            one["name"]
            for one in step.params["items"]
            if box.call("adapter_sent", model=one["model"], name=one["name"], files=one["files"])["there"]
        ]
        return {"there": there}

    def do(self, context: Context, step: PlannedStep) -> Record:
        return {"bytes": send(context, step, step.params["items"])}

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        # What the box lacked of those that the fleet has is no part of the push, and stays.
        new = [one for one in step.params["items"] if "from" in one and one["name"] not in prior["there"]]
        return dict(context.box(step).call("adapters_drop", move=context.plan.move, items=_plain(new)))


@register
class NoteAdapters(Step):
    """The box's index says which adapters there are: from here on engines start with them."""

    kind = "note_adapters"

    def check(self, context: Context, step: PlannedStep) -> bool:
        now = context.box(step).call("adapters_index")
        return bool((now["serial"], now["adapters"]) == (step.params["serial"], step.params["adapters"]))

    def prior(self, context: Context, step: PlannedStep) -> Record:
        now = context.box(step).call("adapters_index")
        return {"serial": now["serial"], "adapters": now["adapters"]}

    def do(self, context: Context, step: PlannedStep) -> Record:
        serial, adapters = step.params["serial"], step.params["adapters"]
        return dict(context.box(step).call("adapters_note", serial=serial, adapters=adapters))

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        return dict(context.box(step).call("adapters_note", **prior, back=True))


@register
class DropAdapters(Step):
    """Files that no index names any more go; until the move is over they can come back."""

    kind = "drop_adapters"

    def do(self, context: Context, step: PlannedStep) -> Record:
        items = _plain(step.params["items"])
        return dict(context.box(step).call("adapters_drop", move=context.plan.move, items=items))

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        items = _plain(step.params["items"])
        return dict(context.box(step).call("adapters_restore", move=context.plan.move, items=items))


@register
class LoadAdapters(Step):
    """A running engine loads adapters, and answers with each that it did not have."""

    kind = "load_adapters"

    def do(self, context: Context, step: PlannedStep) -> Record:
        return load(context, step, context.engine(step), step.params["items"])

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        if step.params["items"] is None:
            return {}  # the engine itself goes, or is one that has what its box keeps
        engine = context.engine(step)
        return dict(
            context.boxes[engine.head.box].call(
                "adapters_unload", **_asked(engine), items=_plain(step.params["items"]), limit=engine.load_limit
            )
        )


@register
class UnloadAdapters(Step):
    """A running engine forgets adapters; what runs with them ends as it would."""

    kind = "unload_adapters"

    def do(self, context: Context, step: PlannedStep) -> Record:
        engine = context.engine(step)
        items = _plain(step.params["items"])
        return dict(
            context.boxes[engine.head.box].call(
                "adapters_unload", **_asked(engine), items=items, limit=engine.load_limit
            )
        )

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        return load(context, step, context.engine(step), step.params["items"])


def tell(
    context: Context,
    box: BoxConnection,
    *,
    without: Sequence[Record] = (),
    also: Sequence[Record] = (),
    gateway: Record | None = None,
) -> Record:
    """Have the proxy and the gateway of a box know the names of its index, but for some, or more."""
    names: dict[str, Any] = {"without": _plain(without), "also": _plain(also)}
    if gateway is not None:
        names["gateway"] = gateway
    return dict(box.call("adapters_tell", path=context.proxy.admin_socket, **names))


@register
class NameAdapters(Step):
    """Proxy and gateway know the names, now and when they start again; nothing is reloaded."""

    kind = "name_adapters"

    def do(self, context: Context, step: PlannedStep) -> Record:
        return tell(context, context.box(step), also=step.params["items"], gateway=step.params.get("gateway"))

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        return tell(context, context.box(step), without=step.params["items"], gateway=step.params.get("gateway"))


@register
class UnnameAdapters(NameAdapters):
    """Proxy and gateway do not know the names any more."""

    kind = "unname_adapters"

    def do(self, context: Context, step: PlannedStep) -> Record:
        return super().undo(context, step, {})

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        return super().do(context, step)


@register
class BringAdapters(Step):
    """A box that was away gets what the others have: files, index, names; engines that run there load them.

    What came stays when the move is undone: it is right whatever the layout.
    """

    kind = "bring_adapters"

    def do(self, context: Context, step: PlannedStep) -> Record:
        params, box = step.params, context.box(step)
        sent = send(context, step, params["items"])
        box.call("adapters_note", serial=params["serial"], adapters=params["adapters"], back=params["in_part"])
        if params["proxy"]:
            tell(context, box)
        for engine in (one for one in context.plan.source.all_engines if one.id in params["engines"]):
            load(context, step, engine, None)
        return {"bytes": sent}
