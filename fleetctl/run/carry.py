"""Carrying a plan out from its beginning, or taking up one that was cut off."""

from __future__ import annotations

from collections.abc import Callable

from fleetctl.errors import FleetError
from fleetctl.plan.types import Plan
from fleetctl.render.release import File
from fleetctl.run.control import Control
from fleetctl.run.execute import Execution, Listener
from fleetctl.run.journal import History, Journal, Record, read_history
from fleetctl.run.planning import Subject


def carry_out(
    subject: Subject, plan: Plan, *, command: str, fill: Callable[[File], str], listen: Listener, control: Control
) -> Record:
    """Execute a plan from its beginning. Raises MoveUndoneError or MoveStuckError when it did not succeed."""
    if not subject.boxes.keys() >= set(plan.boxes):
        missing = sorted(set(plan.boxes) - subject.boxes.keys())
        raise FleetError(f"the plan needs boxes that are not in this fleet.yaml: {', '.join(missing)}")
    journal = Journal(subject.boxes, plan)
    journal.open(command)
    execution = Execution(plan, subject.boxes, journal, fill=fill, listen=listen, control=control)
    execution.remember_boots()
    return execution.run()


def take_up(
    subject: Subject, lead: str, move: str, *, fill: Callable[[File], str], listen: Listener, control: Control
) -> tuple[History, Execution]:
    """The execution of a move that was cut off, ready to be finished or undone."""
    history = read_history(subject.boxes, lead, move)
    journal = Journal(subject.boxes, history.plan)
    execution = Execution(
        history.plan, subject.boxes, journal, fill=fill, listen=listen, control=control, history=history
    )
    execution.remember_boots()
    return history, execution
