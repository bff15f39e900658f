"""What ``capacity calibrate`` does: a trial as a move, and the figures into fleet.yaml."""

from __future__ import annotations

from pathlib import Path

from fleetctl.cli.ask import confirm
from fleetctl.cli.mover import Mover
from fleetctl.cli.output import console, emit
from fleetctl.cli.session import playbooks
from fleetctl.cli.show_tune import difference, show_difference
from fleetctl.errors import RefusedError
from fleetctl.plan.types import Plan
from fleetctl.run.calibrate import Calibration
from fleetctl.run.planning import Look, Subject
from fleetctl.run.trial import measured_by, plan_trial
from fleetctl.spec.edit import save, with_measured


def by_start(
    subject: Subject, mover: Mover, box: str, model: str | None, *, share: float | None, hold: bool
) -> Calibration:
    """Carry out a trial, after it was shown and asked for; its figures."""
    made: list[Plan] = []
    book = playbooks()("calibrate")

    def make(seen: Look) -> Plan:
        made.append(plan_trial(subject, seen, book, box, model, share=share, hold=hold))
        return made[-1]

    end = mover.work("calibrate", make, finishes=False)
    assert end is not None  # a trial always has something to do
    return measured_by(made[-1], end)


def write(text: str, file: Path, box: str, found: Calibration, *, yes: bool, json: bool) -> None:
    """Show the difference that the figures make in fleet.yaml, ask, and write it."""
    after = with_measured(text, found.model, box, found.figures, str(file))
    diff = difference(str(file), text, after, "measured")
    if not json:
        for line in found.lines:
            console().print(line, markup=False)
        show_difference(diff, console())
    if not diff:
        told = f"{file} has it already."
    else:
        if not yes and not confirm(f"Write this into {file}?"):
            raise RefusedError("not done; the file was not changed")
        save(file, text, after)
        told = f"{file} is written. Plans use it from now on; no engine has to start again for that."
    if json:
        emit("calibrated", file=str(file), model=found.model, box=box, diff=diff, **found.measured.model_dump())
    else:
        console().print(told, markup=False)
