"""Steps on engines: stop, wait for the memory, install the files, start, wait until ready."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from fleetctl.plan.difference import engine_name
from fleetctl.plan.types import PlannedStep
from fleetctl.remote.errors import OpFailed
from fleetctl.steps.base import Context, Record, Step, register, with_log


@register
class StopEngine(Step):
    """``systemctl stop`` and the unit seen inactive.

    Undo starts it again, and waits until it serves where it did before: an engine that was broken already does not
    keep the fleet from being brought back.
    """

    kind = "stop_engine"
    once_a_turn = True

    def check(self, context: Context, step: PlannedStep) -> bool:
        state = context.box(step).call("unit_states", units=[step.params["unit"]])[step.params["unit"]]
        if state["active"] == "inactive":
            return True
        # A unit of the same name that runs a newer build is not the one this step is about.
        return state["active"] == "active" and state["engine"] not in (None, step.params["engine"])

    def prior(self, context: Context, step: PlannedStep) -> Record:
        state = context.box(step).call("unit_states", units=[step.params["unit"]])[step.params["unit"]]
        return {"active": state["active"]}

    def do(self, context: Context, step: PlannedStep) -> Record:
        limit = step.params["limit"] + 30
        told = context.box(step).call("unit_stop", unit=step.params["unit"], limit=limit)
        return {"state": told["active"], "took": told["took"]}

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        unit = step.params["unit"]
        pairs = [
            (engine, rank)
            for engine in context.plan.source.engines
            for rank in engine.ranks
            if rank.box == step.box and rank.unit == unit and step.params["serves"]
        ]
        box = context.box(step)
        if prior["active"] == "failed":
            return {"left": unit}
        box.call("unit_start", unit=unit)
        for engine, rank in pairs:
            name = engine_name(engine, rank, context.plan.source.layout)
            url = f"{engine.url}/health" if rank.rank == 0 else None
            try:
                box.call(
                    "await_ready",
                    unit=unit,
                    engine=name,
                    url=url,
                    limit=engine.load_limit,
                    on_event=context.progress(step),
                )
            except OpFailed as failure:
                raise with_log(context, step.box, unit, failure) from failure
            for other in engine.ranks:
                # The other ranks of a split restarted by themselves when this one stopped: that is no fault to report.
                context.boxes[other.box].run("systemctl", "reset-failed", other.unit, check=False)
        return {"restarted": unit}


@register
class AwaitFree(Step):
    """Processes and ports of the old engines are gone and available memory has levelled off."""

    kind = "await_free"
    once_a_turn = True

    def check(self, context: Context, step: PlannedStep) -> bool:
        running = {process["engine"] for process in context.box(step).call("engine_processes")}
        return bool(running & set(step.params["next"]))  # the new engine is there already: a move being finished

    def do(self, context: Context, step: PlannedStep) -> Record:
        return dict(
            context.box(step).call(
                "await_free",
                engines=step.params["engines"],
                ports=step.params["ports"],
                need=step.params["need"],
                limit=step.params["limit"],
                on_event=context.progress(step),
            )
        )


@register
class AwaitRoom(AwaitFree):
    """Memory and ports that the new engines ask for are free while the old ones run."""

    kind = "await_room"


@register
class InstallFiles(Step):
    """Live files become those of the generation, then daemon-reload; what they replace is kept for undo."""

    kind = "install_files"

    def check(self, context: Context, step: PlannedStep) -> bool:
        folder = context.generation_files(step.params["generation"])
        told = context.box(step).call("installed", folder=folder, paths=step.params["install"], absent=[])
        return not told["differ"]

    def do(self, context: Context, step: PlannedStep) -> Record:
        folder = context.generation_files(step.params["generation"])
        box = context.box(step)
        told = box.call("install", move=context.plan.move, folder=folder, paths=step.params["install"], remove=[])
        box.call("daemon_reload")
        return dict(told)

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        box = context.box(step)
        told = box.call("uninstall", move=context.plan.move, paths=step.params["install"])
        box.call("daemon_reload")
        return dict(told)


@register
class StartEngine(Step):
    """Queue the start of a unit. Whether the engine gets ready is another step's to see."""

    kind = "start_engine"

    def check(self, context: Context, step: PlannedStep) -> bool:
        state = context.box(step).call("unit_states", units=[step.params["unit"]])[step.params["unit"]]
        return state["active"] in ("active", "activating") and state["engine"] == step.params["engine"]

    def do(self, context: Context, step: PlannedStep) -> Record:
        try:
            told = context.box(step).call("unit_start", unit=step.params["unit"])
        except OpFailed as failure:
            raise with_log(context, step.box, step.params["unit"], failure) from failure
        return {"state": told["active"], "at": told["at"]}

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        limit = step.params["limit"] + 30
        box = context.box(step)
        box.call("unit_stop", unit=step.params["unit"], limit=limit)
        box.call("await_free", engines=[step.params["engine"]], ports=[], need=0, limit=60)
        return {"stopped": step.params["unit"]}


@register
class AwaitReady(Step):
    """Every rank of the engine runs the right build and its head answers on /health. Fails as soon as a rank does."""

    kind = "await_ready"

    def do(self, context: Context, step: PlannedStep) -> Record:
        ranks = step.params["ranks"]
        failed = threading.Event()

        def heard(rank: Record, event: Record) -> None:
            if failed.is_set():
                raise OpFailed(rank["box"], "await_ready", "Cancelled", "another rank of the engine failed")
            context.say(step, {"box": rank["box"], **event})

        def wait(number: int) -> Record:
            rank = ranks[number]
            try:
                return dict(
                    context.boxes[rank["box"]].call(
                        "await_ready",
                        unit=rank["unit"],
                        engine=rank["engine"],
                        url=step.params["url"] if number == 0 else None,
                        limit=step.params["limit"],
                        on_event=lambda event: heard(rank, event),
                    )
                )
            except OpFailed as failure:
                failed.set()
                raise with_log(context, rank["box"], rank["unit"], failure) from failure

        with ThreadPoolExecutor(len(ranks)) as pool:
            waits = [pool.submit(wait, number) for number in range(len(ranks))]
        errors = [error for one in waits if (error := one.exception()) is not None]
        if errors:
            raise next((error for error in errors if getattr(error, "kind", "") != "Cancelled"), errors[0])
        told = [one.result() for one in waits]
        head = ranks[0]
        said = context.boxes[head["box"]].call("memory_lines", unit=head["unit"])
        return {"ready_at": told[0]["ready_at"], "waited": max(one["waited"] for one in told), "said": said}
