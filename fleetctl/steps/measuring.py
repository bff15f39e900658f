"""Steps that measure an engine under load while it is out of the proxy: at which concurrency, with which settings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from fleetctl.bench.asked import Asked
from fleetctl.bench.endpoint import Endpoint
from fleetctl.bench.knee import Point, Probe, Range
from fleetctl.bench.settings import Setting, Start, Started, as_record, search
from fleetctl.bench.target import version_of
from fleetctl.bench.tune import tune, warm_up_for
from fleetctl.bench.way import way_to
from fleetctl.errors import BoxError, FleetError
from fleetctl.plan.measuring import Candidate, Tried
from fleetctl.plan.types import PlannedStep
from fleetctl.remote.errors import OpFailed
from fleetctl.render.candidate import said
from fleetctl.render.trial import LOOPBACK, Trial
from fleetctl.spec.units import gib
from fleetctl.steps.base import Context, Record, Step, log_of, register


@register
class MeasureKnee(Step):
    """The engine, which the proxy sends nothing to, is measured at one concurrency after another."""

    kind = "measure_knee"
    once = True

    def do(self, context: Context, step: PlannedStep) -> Record:
        engine, asked = context.engine(step), Asked.model_validate(step.params["load"])
        box = context.boxes[engine.head.box]

        def hear(probe: Probe, point: Point | None) -> None:
            refuse_stopped(context, step)
            if point is not None:
                context.say(
                    step, {"log": f"{point.concurrency} at once: {point.throughput:.1f} tokens/s ({probe.why})"}
                )

        with _lost_with(context, step), way_to(Endpoint(engine.address, engine.port), box.name, box.tunnel) as way:
            context.say(step, {"log": way.told})
            bench = asked.bench(way.endpoint)
            found = tune(bench, Range(**step.params["knee"]), duration=asked.duration, say=hear)
            version = version_of(way.endpoint)
        served = bench.met.dialect.model
        return {"knee": {**found.record(), "model": served, "mix": asked.mix.name, "version": version}}


@register
class TrySettings(Step):
    """The engine starts with one set of values after the other, each in the unit of a trial, and is measured.

    All of it is over within this step, whether it went well or not. Undo is for one that nobody was there to end.
    """

    kind = "try_settings"
    once = True

    def do(self, context: Context, step: PlannedStep) -> Record:
        settings = [Tried.model_validate(one) for one in step.params["settings"]]
        candidates = [Candidate.model_validate(one) for one in step.params["candidates"]]
        going = search([Setting(one.name, one.present, one.candidates, dict(one.skipped)) for one in settings])
        started: list[Started] = []
        try:
            start = next(going)
            while True:
                trial = next(one.trial for one in candidates if one.values == start.values)
                started.append(self._measured(context, step, start, trial))
                start = going.send(started[-1])
        except StopIteration as end:
            outcome = end.value
        end_trial(context, step, candidates[0].trial.unit, need=step.params["need"])
        rows = [{"values": dict(one.values), "rates": one.rates, "why": one.why, "load": one.load} for one in started]
        return {
            "settings": {
                **as_record(outcome),
                "mix": step.params["load"]["mix"]["name"],
                "concurrency": step.params["concurrency"],
                "measured": rows,
            }
        }

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        for unit in {one["trial"]["unit"] for one in step.params["candidates"]}:
            end_trial(context, step, unit, need=0)
        return {}

    def _measured(self, context: Context, step: PlannedStep, start: Start, trial: Trial) -> Started:
        """One start, and its measurements. What keeps it from being measured is said in the result."""
        box, values, words = context.box(step), start.values, f"{start.why}: {_words(start.values)}"
        refuse_stopped(context, step)
        end_trial(context, step, trial.unit, need=int(trial.share * trial.memory))
        context.say(step, {"log": f"{words} starts"})
        try:
            seen = box.call(
                "trial_run",
                unit=trial.unit,
                content=trial.content,
                url=f"{trial.url}/health",
                limit=step.params["limit"],
                on_event=context.progress(step),
            )
        except OpFailed as failure:
            if failure.kind == "Cancelled":
                raise
            last = _last_words(log_of(context, step.box, trial.unit))
            why = f"it did not start: {failure.message}; {last}"
            context.say(step, {"log": f"{words}: {why}"})
            return Started(dict(values), why=why)
        try:
            return self._loaded(context, step, start, trial, seen)
        except BoxError:
            raise
        except FleetError as error:
            box.call("ping", timeout=10)  # where the connection broke, it says so, and the step is tried again
            why = f"it does not answer: {error.message}; {_last_words(log_of(context, step.box, trial.unit))}"
            return Started(dict(values), why=why)

    def _loaded(self, context: Context, step: PlannedStep, start: Start, trial: Trial, seen: Record) -> Started:
        asked, many = Asked.model_validate(step.params["load"]), step.params["concurrency"]
        box, points = context.box(step), list[Point]()
        port = int(trial.url.rpartition(":")[2])
        with box.tunnel(LOOPBACK, port) as socket:
            bench = asked.bench(Endpoint(LOOPBACK, port, socket=socket))
            for number in range(step.params["windows"]):
                refuse_stopped(context, step)
                warm_up = warm_up_for(many, points, asked.duration)
                points.append(bench.closed(many, warm_up=warm_up, duration=asked.duration).point(many))
                told = f"{start.why}: {points[-1].throughput:.1f} tokens/s ({number + 1} of {step.params['windows']})"
                context.say(step, {"log": told})
        usable, after = step.params["usable"], box.call("memory_left")["available"]
        taken = seen["before"] - min(seen["least"], after)
        if usable is not None and taken > usable:
            why = f"it took {gib(taken)} of the box, and the reserve leaves {gib(usable)}"
            return Started(dict(start.values), why=why, load=seen["seconds"])
        return Started(
            dict(start.values),
            tuple(point.throughput for point in points),
            load=seen["seconds"],
            ttft=_mean([point.ttft for point in points]),
            tpot=_mean([point.tpot for point in points]),
        )


def refuse_stopped(context: Context, step: PlannedStep) -> None:
    """Raises OpFailed, as a wait that was cancelled does, when the move is going to be undone anyway."""
    if context.stopped():
        raise OpFailed(step.box, step.kind, "Cancelled", "measuring was stopped")


def end_trial(context: Context, step: PlannedStep, unit: str, need: int) -> None:
    """The unit is stopped and gone, and so is what it held."""
    box = context.box(step)
    box.call("trial_end", unit=unit, limit=step.params["stop_limit"] + 30)
    engines = sorted({one["trial"]["engine"] for one in step.params["candidates"]})
    box.call("await_free", engines=engines, ports=[], need=need, limit=step.params["free_within"])


@contextlib.contextmanager
def _lost_with(context: Context, step: PlannedStep) -> Iterator[None]:
    """Where a load failed because the connection to the box broke, that is said, and the step is tried again."""
    try:
        yield
    except BoxError:
        raise
    except FleetError:
        context.box(step).call("ping", timeout=10)
        raise


def _words(values: Mapping[str, float | None]) -> str:
    return ", ".join(said(name, value) for name, value in values.items())


def _last_words(log: str) -> str:
    """The last line of a log that tells of an error, else the last one."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "error" in line]
    return (telling or lines or ["its log says nothing"])[-1][:300]


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
