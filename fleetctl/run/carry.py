"""Carrying a plan out from its beginning, or taking up one that was cut off."""

from __future__ import annotations

from collections.abc import Callable

from fleetctl.errors import FleetError
from fleetctl.plan.types import Plan
from fleetctl.render.release import File
from fleetctl.run.control import Control
from fleetctl.run.execute import Execution, Listener
from fleetctl.run.journal import History, Journal, Record, of_another_version, read_history
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
    journal.open(command)
    return Execution(plan, journal, reach, fill=fill, listen=listen, control=control).run()


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
    execution = Execution(history.plan, journal, reach, fill=fill, listen=listen, control=control, history=history)
    return history, execution
