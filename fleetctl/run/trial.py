"""An engine is started once with a small share, to be measured: from facts to a plan, and from its end to figures."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

from fleetctl.capacity.calibration import BATCHED_TOKENS, Started, measure
from fleetctl.capacity.forecast import Forecast
from fleetctl.errors import RefusedError, SpecError
from fleetctl.facts.types import lead_of
from fleetctl.plan.difference import BoxDifference, compare
from fleetctl.plan.playbook import Playbook
from fleetctl.plan.types import Plan
from fleetctl.render.engine import Place
from fleetctl.render.release import Engine, Release
from fleetctl.render.trial import Trial, render_trial
from fleetctl.run.calibrate import Calibration, calibration, one_of, writable
from fleetctl.run.planning import Look, Subject
from fleetctl.run.rolling import engines_on, left_without, live_in, nothing_to_do, on_live, server_of
from fleetctl.run.sizing import size_up
from fleetctl.spec.fleet import Fleet
from fleetctl.spec.load import parse_fleet

SPARE = 1.1
"""What a trial gets is what it needs, times this: the engine sees a little less memory than the box has."""


def plan_trial(
    subject: Subject, seen: Look, book: Playbook, box: str, model: str | None, *, share: float | None, hold: bool
) -> Plan:
    """The plan that measures the engine of a box (of ``model``, where several are there) by starting it once.

    ``share`` is the trial's gpu_memory_utilization; None: the least with which it surely starts. Raises RefusedError
    for a split, for an engine that does not run as it should, and, unless ``hold``, where nobody would serve meanwhile.
    """
    live = live_in(subject, seen)
    engines_on(live, subject, box)
    engine, rank = one_of(live, box, model)
    writable(subject, engine.model, box)
    if engine.kind == "split":
        boxes = ", ".join(other.box for other in engine.ranks)
        raise RefusedError(
            f"{engine.id} is one engine over {boxes}: it cannot be started on {box} alone; nothing was changed",
            hint=f"`fleetctl capacity calibrate {box} --running` reads what it logged when it started; a layout with a "
            f"copy on {box} can be measured by a start",
        )
    generation = seen.observed[lead_of(seen.observed, subject.fleet.proxy.lead)].generation
    if any(other.id == engine.id for other in compare(live, live, seen.observed, generation).start):
        raise RefusedError(
            f"{engine.id} does not run as the layout wants it; nothing was changed",
            hint=f"fleetctl restart {box} starts it; fleetctl status says what is wrong",
        )
    left = left_without([engine], live, seen.observed)
    if left and not hold:
        raise RefusedError(
            f"while {engine.id} is measured no engine serves {', '.join(left)}; nothing was changed",
            hint="bring another copy into rotation first; or use --hold: requests wait in the proxy while the engine "
            f"starts twice; or `fleetctl capacity calibrate {box} --running` reads what it logged when it started",
        )
    trial, limits = _trial(subject, live, engine, box, share)
    drained = seen.observed[box].drained is not None
    server = server_of(engine)
    nothing = nothing_to_do(live, seen)
    here = BoxDifference(box, stop={rank.unit: seen.observed[box].units[rank.unit]}, start={rank.unit: (engine, rank)})
    difference = replace(
        nothing,
        boxes={**nothing.boxes, box: here},
        start=[engine],
        prove=[engine],
        open=[] if drained else [engine],
        close=[] if drained else [server],
        trial=trial,
        served=not left,
    )
    why = f"requests for {', '.join(left)} wait in the proxy" if left else None
    plan = on_live(subject, seen, book, "calibrate", difference, why_held=why)
    return plan.model_copy(update={"warnings": (*plan.warnings, *limits)})


def _trial(
    subject: Subject, live: Release, engine: Engine, box: str, share: float | None
) -> tuple[Trial, tuple[str, ...]]:
    """The trial, and what is to be known of it before."""
    fleet = _fleet_of(live, subject.fleet)
    forecast = size_up(fleet, subject.boxes, live, [engine]).get(engine.id, Forecast(()))
    usual, memory = engine.head.share, fleet.boxes[box].memory
    notes: tuple[str, ...] = ()
    if share is None:
        share = usual
        if forecast.least is not None:
            share = min(usual, math.ceil(SPARE * forecast.least / memory * 100) / 100)
        else:
            notes = (f"what {engine.id} needs is not known: it gets its usual share, {usual:g}; --share names another",)
    elif share > usual:
        raise SpecError(f"--share {share:g}: {engine.id} has {usual:g}, and more would eat into the reserve of {box}")
    place = Place(live.layout or "", engine.model, box, 0, (box,), engine.port, share)
    return render_trial(fleet, place).model_copy(update={"weights": forecast.weights}), notes


def _fleet_of(live: Release, fleet: Fleet) -> Fleet:
    """The file that the live layout was made from: what runs is measured, and not what is to come."""
    return parse_fleet(live.spec, "the fleet.yaml of the live layout") if live.spec else fleet


def measured_by(plan: Plan, end: dict[str, Any]) -> Calibration:
    """The figures of a trial that is over. Raises RefusedError where the engine's log does not tell enough."""
    step = next(step for step in plan.steps if step.kind == "trial")
    engine = next(one for one in plan.release.engines if one.id == step.params["engine"])
    trial, seen = Trial.model_validate(step.params["trial"]), end["trials"][engine.id]
    started = Started(
        engine=engine.id,
        box=step.box,
        ranks=1,
        memory=trial.memory,
        share=trial.share,
        batched_tokens=trial.batched_tokens or BATCHED_TOKENS,
        log="\n".join(seen["lines"]),
        weights=trial.weights,
        taken=(seen["before"] - seen["least"], seen["before"] - seen["ready"]),
    )
    return calibration(engine.model, started, measure(started, time.strftime("%Y-%m-%d")))
