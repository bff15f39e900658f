"""Steps on a pool: its programs are brought, stopped and started, seen at work, and its engines proved."""

from __future__ import annotations

import base64

from fleetctl.errors import BoxError, FleetError
from fleetctl.plan.types import PlannedStep
from fleetctl.remote.connection import BoxConnection
from fleetctl.remote.errors import OpFailed
from fleetctl.render.names import WORKER_UNIT
from fleetctl.render.release import Bundle, Engine
from fleetctl.spec.units import seconds
from fleetctl.steps.adapters import tell
from fleetctl.steps.base import Context, Record, Step, register, with_log
from fleetctl.steps.collect import Target, archive_of, sha256
from fleetctl.steps.gate import Gate
from fleetctl.steps.traffic import Open

PIECE = 2 << 20  # bytes of one call
TRIES = 3  # of an engine that others may make go while it is asked


@register
class ShipPrograms(Step):
    """Programs and libraries are in their folders on the box. What a move brought, its undo takes away again."""

    kind = "ship_programs"

    def check(self, context: Context, step: PlannedStep) -> bool:
        return not _lacking(context, step)

    def prior(self, context: Context, step: PlannedStep) -> Record:
        return {"lacking": [bundle.digest for bundle in _lacking(context, step)]}

    def do(self, context: Context, step: PlannedStep) -> Record:
        box, sent = context.box(step), 0
        for bundle in _lacking(context, step):
            look = box.call("programs_look", digests=[])
            context.say(step, {"log": f"libraries for Python {look['made_for']['python']} are put together"})
            archive = archive_of(bundle, Target(**look["made_for"]))
            for offset in range(0, len(archive), PIECE):
                piece = base64.b64encode(archive[offset : offset + PIECE]).decode("ascii")
                box.call("programs_put", digest=bundle.digest, offset=offset, data=piece)
            box.call("programs_unpack", digest=bundle.digest, sha256=sha256(archive), timeout=300)
            sent += len(archive)
        return {"bytes": sent}

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        return dict(context.box(step).call("programs_remove", digests=prior["lacking"]))


def _lacking(context: Context, step: PlannedStep) -> list[Bundle]:
    bundles = [Bundle.model_validate(one) for one in step.params["bundles"]]
    look = context.box(step).call("programs_look", digests=[bundle.digest for bundle in bundles])
    return [bundle for bundle in bundles if bundle.digest not in look["there"]]


class StopProgram(Step):
    """A program stops; with a worker also the engines that it loaded and that do not stay.

    Which those are is looked at when the worker has stopped: until then it may load another.
    """

    def check(self, context: Context, step: PlannedStep) -> bool:
        units = [step.params["unit"], *step.params["engines"]]
        seen = context.box(step).call("unit_states", units=units)
        return all(seen[unit]["active"] == "inactive" for unit in units)

    def prior(self, context: Context, step: PlannedStep) -> Record:
        unit = step.params["unit"]
        return {"active": context.box(step).call("unit_states", units=[unit])[unit]["active"]}

    def do(self, context: Context, step: PlannedStep) -> Record:
        box = context.box(step)
        told = box.call("unit_stop", unit=step.params["unit"], limit=step.params["limit"] + 30)
        for unit, limit in step.params["engines"].items():
            box.call("unit_stop", unit=unit, limit=limit + 30)
        return {"took": told["took"]}

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        if prior["active"] in ("active", "activating", "reloading"):
            context.box(step).call("unit_start", unit=step.params["unit"], wait=True)
        return {}


@register
class StopGateway(StopProgram):
    """A gateway stops."""

    kind = "stop_gateway"


@register
class StopWorker(StopProgram):
    """A worker stops, and engines that it loaded."""

    kind = "stop_worker"


@register
class StopNats(StopProgram):
    """The queue stops."""

    kind = "stop_nats"


class StartProgram(Step):
    """Start a program. Whether it does its work is another step's to see."""

    def check(self, context: Context, step: PlannedStep) -> bool:
        unit = step.params["unit"]
        return bool(context.box(step).call("unit_states", units=[unit])[unit]["active"] == "active")

    def do(self, context: Context, step: PlannedStep) -> Record:
        unit = step.params["unit"]
        try:
            told = context.box(step).call("unit_start", unit=unit)
        except OpFailed as failure:
            raise with_log(context, step.box, unit, failure) from failure
        return {"state": told["active"], "at": told["at"]}

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        box = context.box(step)
        box.call("unit_stop", unit=step.params["unit"], limit=step.params["limit"] + 30)
        for unit, limit in step.params["engines"].items():
            box.call("unit_stop", unit=unit, limit=limit + 30)
        return {}


@register
class StartNats(StartProgram):
    """The queue starts."""

    kind = "start_nats"


@register
class StartWorker(StartProgram):
    """A worker starts, and with it the engines that are pinned."""

    kind = "start_worker"


@register
class StartGateway(StartProgram):
    """A gateway starts, and knows the LoRA adapters that its box knows."""

    kind = "start_gateway"

    def do(self, context: Context, step: PlannedStep) -> Record:
        if step.params.get("adapters"):
            tell(context, context.box(step))
        return super().do(context, step)


@register
class AwaitPool(Step):
    """A program does its work: it listens, has reached the queue, and has loaded what is pinned."""

    kind = "await_pool"

    def do(self, context: Context, step: PlannedStep) -> Record:
        params = step.params
        try:
            told = context.box(step).call(
                "await_service",
                unit=params["unit"],
                address=params["address"],
                port=params["port"],
                url=params["url"],
                engines=list(params["pinned"].values()),
                limit=params["limit"],
                on_event=context.progress(step),
            )
        except OpFailed as failure:
            loading = [unit for unit in params["pinned"].values() if unit in str(failure)]
            raise with_log(context, step.box, loading[0] if loading else params["unit"], failure) from failure
        return {"waited": told["waited"]}


@register
class GatePool(Gate):
    """A pinned engine passes its gates, asked directly."""

    kind = "gate_pool"


@register
class DrainWorker(Step):
    """A worker whose box is drained has finished what it had taken."""

    kind = "drain_worker"

    def do(self, context: Context, step: PlannedStep) -> Record:
        limit = step.params["limit"]
        told = context.box(step).call("pool_idle", limit=limit, on_event=context.progress(step))
        if told["left"]:
            context.say(step, {"log": f"{told['left']} requests still run after {seconds(limit)}"})
        return {"waited": told["waited"], "cut": told["left"]}


@register
class RestartPooled(Step):
    """Engines of the pool start anew through their workers, one after the other."""

    kind = "restart_pooled"
    once = True

    def do(self, context: Context, step: PlannedStep) -> Record:
        took = {}
        for one in step.params["engines"]:
            context.say(step, {"log": f"{one['model']} on {one['box']}"})
            try:
                told = context.boxes[one["box"]].call(
                    "pool_restart",
                    model=one["model"],
                    unit=one["unit"],
                    limit=one["limit"],
                    on_event=context.progress(step),
                )
            except OpFailed as failure:
                raise with_log(context, one["box"], one["unit"], failure) from failure
            took[f"{one['model']}@{one['box']}"] = told["waited"]
        return {"took": took}


@register
class GateUnpinned(Gate):
    """An engine that is not pinned is loaded once and passes its gates, asked directly.

    Which models stay loaded is the worker's to decide. One that an operator wants out (`fleetctl pool evict`) stays
    out, and is not asked.
    """

    kind = "gate_unpinned"

    def do(self, context: Context, step: PlannedStep) -> Record:
        engine, box = context.engine(step), context.box(step)
        unit = engine.head.unit
        told = box.call("pool_state")["state"] or {}
        mine = told.get("models", {}).get(engine.model, {}).get("engines", [])
        if any(one.get("wish") == "evict" for one in mine):
            context.say(step, {"log": f"{engine.model} was evicted by an operator, and stays out"})
            return {"left": True}
        for number in range(TRIES):
            self._load(context, step, engine)
            try:
                return super().do(context, step)
            except BoxError:
                raise
            except FleetError:
                # Requests of other models may have made it go while it was asked.
                if number == TRIES - 1 or not self._went(box, unit):
                    raise
        raise AssertionError

    def _load(self, context: Context, step: PlannedStep, engine: Engine) -> None:
        box, unit = context.box(step), engine.head.unit
        try:
            box.call("pool_wish", model=unit, wish="load")
            box.call(
                "await_service",
                unit=WORKER_UNIT,
                address="",
                port=0,
                url="",
                engines=[unit],
                limit=engine.load_limit + engine.stop_limit,
                on_event=context.progress(step),
            )
        except OpFailed as failure:
            raise with_log(context, step.box, unit, failure) from failure

    def _went(self, box: BoxConnection, unit: str) -> bool:
        return box.call("unit_states", units=[unit])[unit]["active"] in ("inactive", "deactivating")

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        try:
            context.box(step).call("pool_wish", model=context.engine(step).head.unit, wish="leave")
        except OpFailed as failure:
            context.say(step, {"log": f"what is wished of it stays: {failure.reason}"})
        return {}


@register
class OpenGateway(Open):
    """A gateway's server takes requests."""

    kind = "open_gateway"
