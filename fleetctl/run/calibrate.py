"""What an engine that runs logged of its memory when it started. Nothing is changed on the boxes."""

from __future__ import annotations

import time
from dataclasses import dataclass

from fleetctl.capacity.calibration import Started, measure, written
from fleetctl.errors import RefusedError, SpecError
from fleetctl.facts.gather import gather, questions
from fleetctl.render.batched import batched_tokens
from fleetctl.render.release import Engine, Rank, Release
from fleetctl.run.planning import Subject
from fleetctl.spec.edit import with_measured
from fleetctl.spec.fleet_model import Measured
from fleetctl.spec.problems import did_you_mean
from fleetctl.spec.units import gib

TIME_FOR_LOG = 120.0  # seconds


@dataclass(frozen=True)
class Calibration:
    """What was measured of a model on a box, as values and as it is written in fleet.yaml."""

    model: str
    measured: Measured
    figures: dict[str, str]
    lines: tuple[str, ...]


def calibrate(subject: Subject, box: str, model: str | None) -> Calibration:
    """Read the log of the engine on ``box``. Raises RefusedError where none runs, or its log does not tell enough."""
    fleet = subject.fleet
    if box not in fleet.boxes:
        raise SpecError(f"there is no box {box} in fleet.yaml", hint=did_you_mean(box, fleet.boxes))
    if box in subject.unreachable:
        raise subject.unreachable[box]
    release = gather(subject.boxes, questions(fleet))[box].release or Release(fleet=fleet.fleet, layout=None)
    engine, rank = one_of(release, box, model)
    writable(subject, engine.model, box)
    told = subject.boxes[box].call("start_lines", unit=rank.unit, timeout=TIME_FOR_LOG)
    if told["active"] != "active":
        raise RefusedError(
            f"{rank.unit} on {box} is {told['active']}: what it logs is whole when it serves",
            hint="`fleetctl status` says what is wrong",
        )
    budget = next(budget for budget in release.budgets if budget.box == box)
    started = Started(
        engine=engine.id,
        box=box,
        ranks=len(engine.ranks),
        memory=budget.memory,
        share=rank.share,
        batched_tokens=batched_tokens(release, box, rank),
        log="\n".join(told["lines"]),
    )
    return calibration(engine.model, started, measure(started, time.strftime("%Y-%m-%d")))


def calibration(model: str, started: Started, measured: Measured) -> Calibration:
    """What was measured, with the words for it."""
    lines = [
        f"{started.engine} on {started.box}: weights {gib(measured.weights)}, "
        f"beyond weights and cache {gib(measured.overhead)}"
    ]
    if measured.peak is not None:
        lines.append(f"  of that {gib(measured.peak)} are activations at their peak")
    if measured.startup is not None:
        lines.append(f"  while it started it took up to {gib(measured.startup)} of the box")
    return Calibration(model, measured, written(measured), tuple(lines))


def writable(subject: Subject, model: str, box: str) -> None:
    """Raises SpecError or RefusedError where fleet.yaml has no place for what is measured, before anything is done."""
    if model not in subject.fleet.models:
        raise RefusedError(f"an engine of {model} runs on {box}, and fleet.yaml has no model {model}")
    with_measured(subject.text, model, box, written(Measured(weights=0, overhead=0, at="2000-01-01")))


def one_of(release: Release, box: str, model: str | None) -> tuple[Engine, Rank]:
    """The engine on a box, of a model where several are there, and its rank there. Raises RefusedError or SpecError."""
    there = release.ranks_on(box)
    found = [(engine, rank) for engine, rank in there if model in (None, engine.model)]
    if not found:
        what = "no engine" if model is None else f"no engine of {model}"
        runs = ", ".join(engine.id for engine, _ in there) or "nothing"
        raise RefusedError(
            f"{what} of fleetctl is on {box} in the layout that is live",
            hint=f"there is {runs}; `fleetctl cutover` starts one, then calibrate",
        )
    if len(found) > 1:
        names = [engine.model for engine, _ in found]
        raise SpecError(f"{', '.join(names)} run on {box}", hint=f"say which: --model {names[0]}")
    return found[0]
