"""Carrying a plan out from its beginning, or taking up one that was cut off."""

from __future__ import annotations

from collections.abc import Callable

from fleetctl.errors import FleetError
from fleetctl.facts.operations import GUARDED
from fleetctl.plan.types import Plan
from fleetctl.render.release import File
from fleetctl.run.control import Control
from fleetctl.run.execute import Execution, Listener
from fleetctl.run.journal import History, Journal, Record, of_another_version, read_history, whoami
from fleetctl.run.planning import Subject
from fleetctl.run.reach import Reach
from fleetctl.steps import KINDS


def carry_out(
    subject: Subject,
    plan: Plan,
    *,
    command: str,
    fill: Callable[[File], str],
    listen: Listener,
    control: Control,
    reach: Reach,
) -> Record:
    """Execute a plan from its beginning. Raises MoveUndoneError or MoveStuckError when it did not succeed."""
    if not subject.boxes.keys() >= set(plan.boxes):
        missing = sorted(set(plan.boxes) - subject.boxes.keys())
        raise FleetError(f"the plan needs boxes that are not in this fleet.yaml: {', '.join(missing)}")
    journal = Journal(subject.boxes, plan)
    _begin(subject, plan)
    journal.open(command)
    return Execution(plan, journal, reach, fill=fill, listen=listen, control=control).run()


def _begin(subject: Subject, plan: Plan) -> None:
    """Have every box note that a move is under way: the guards stand back until its end.

    Not for what touches no engine: engines go on meanwhile, for as long as a transfer takes, and guards watch them.
    """
    if plan.operation in GUARDED:
        return
    subject.boxes.each(
        lambda box: box.call("move_begin", move=plan.move, operation=plan.operation, who=whoami(), timeout=30)
    )


def take_up(
    subject: Subject,
    lead: str,
    move: str,
    *,
    fill: Callable[[File], str],
    listen: Listener,
    control: Control,
    reach: Reach,
) -> tuple[History, Execution]:
    """The execution of a move that was cut off, ready to be finished or undone."""
    history = read_history(subject.boxes, lead, move)
    unknown = sorted({step.kind for step in history.plan.steps} - KINDS.keys())
    if unknown:
        raise of_another_version(lead, move, history.meta, f"there is no step {', '.join(unknown)}")
    missing = sorted(set(history.plan.boxes) - subject.boxes.keys())
    if missing:
        raise FleetError(f"the move was made with boxes that are not in this fleet.yaml: {', '.join(missing)}")
    journal = Journal(subject.boxes, history.plan)
    _begin(subject, history.plan)
    execution = Execution(history.plan, journal, reach, fill=fill, listen=listen, control=control, history=history)
    return history, execution
