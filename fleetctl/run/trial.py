"""An engine is started once with a small share, to be measured: from facts to a plan, and from its end to figures."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

from fleetctl.capacity.calibration import BATCHED_TOKENS, Started, measure
from fleetctl.capacity.forecast import Forecast
from fleetctl.errors import RefusedError, SpecError
from fleetctl.facts.types import lead_of
from fleetctl.plan.difference import BoxDifference, Difference, compare
from fleetctl.plan.playbook import Playbook
from fleetctl.plan.types import Plan
from fleetctl.render.engine import Place
from fleetctl.render.release import Engine, Rank, Release
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
    engine, _ = one_on(live, subject, box, model)
    writable(subject, engine.model, box)
    if engine.kind == "split":
        boxes = ", ".join(other.box for other in engine.ranks)
        raise RefusedError(
            f"{engine.id} is one engine over {boxes}: it cannot be started on {box} alone; nothing was changed",
            hint=f"`fleetctl capacity calibrate {box} --running` reads what it logged when it started; a layout with a "
            f"copy on {box} can be measured by a start",
        )
    out = taken_out(
        subject,
        seen,
        engine,
        stops=True,
        hold=hold,
        otherwise="use --hold: requests wait in the proxy while the engine starts twice; or `fleetctl capacity "
        f"calibrate {box} --running` reads what it logged when it started",
    )
    trial, limits = _trial(subject, live, engine, box, share)
    difference = replace(out.difference, trial=trial)
    why = f"requests for {', '.join(out.left)} wait in the proxy" if out.left else None
    plan = on_live(subject, seen, book, "calibrate", difference, why_held=why)
    return plan.model_copy(update={"warnings": (*plan.warnings, *limits)})


def one_on(live: Release, subject: Subject, box: str, model: str | None) -> tuple[Engine, Rank]:
    """The engine on a box, of a model where several are there, and its rank there. Raises RefusedError or SpecError."""
    engines_on(live, subject, box)
    return one_of(live, box, model)


@dataclass(frozen=True)
class TakenOut:
    """What takes an engine out of the proxy and brings it back, and the models that nobody serves meanwhile."""

    difference: Difference
    left: tuple[str, ...]


def taken_out(subject: Subject, seen: Look, engine: Engine, *, stops: bool, hold: bool, otherwise: str) -> TakenOut:
    """An engine leaves the proxy to be measured; with ``stops`` it is stopped then, and starts again as it was.

    Raises RefusedError where it does not run as it should, and, unless ``hold``, where nobody would serve meanwhile;
    ``otherwise`` says what can be done then. On a drained box it stays out.
    """
    live, box = live_in(subject, seen), engine.head.box
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
            hint=f"bring another copy into rotation first; or {otherwise}",
        )
    drained = any(seen.observed[rank.box].drained is not None for rank in engine.ranks)
    nothing = nothing_to_do(live, seen)
    boxes = dict(nothing.boxes)
    for rank in engine.ranks if stops else ():
        unit = seen.observed[rank.box].units[rank.unit]
        boxes[rank.box] = BoxDifference(rank.box, stop={rank.unit: unit}, start={rank.unit: (engine, rank)})
    difference = replace(
        nothing,
        boxes=boxes,
        start=[engine] if stops else [],
        prove=[engine],
        open=[] if drained else [engine],
        close=[] if drained else [server_of(engine)],
        served=not left,
    )
    return TakenOut(difference, tuple(left))


def _trial(
    subject: Subject, live: Release, engine: Engine, box: str, share: float | None
) -> tuple[Trial, tuple[str, ...]]:
    """The trial, and what is to be known of it before."""
    fleet = fleet_of(live, subject.fleet)
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


def fleet_of(live: Release, fleet: Fleet) -> Fleet:
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
