"""The journal of a move, kept on the lead box: the plan, and a record before and after every step."""

from __future__ import annotations

import getpass
import os
import secrets
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from fleetctl import __version__
from fleetctl.errors import UnfinishedError
from fleetctl.facts.types import first_fault
from fleetctl.plan.types import Plan
from fleetctl.remote.boxes import Boxes

Record = dict[str, Any]


def whoami() -> str:
    """The operator, as the journal and the lock name them."""
    try:
        user = os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


@dataclass
class History:
    """What the journal of a move tells: which steps were begun, done, undone, and with what recorded for undo."""

    plan: Plan
    meta: Record
    priors: dict[str, Record] = field(default_factory=dict)
    results: dict[str, Record] = field(default_factory=dict)
    undone: set[str] = field(default_factory=set)
    undoing: bool = False
    why: str = ""
    end: Record | None = None

    @classmethod
    def of(cls, plan: Plan, meta: Record, records: list[Record]) -> History:
        """Read the records in order. The first prior of a step counts: later ones saw it half done.

        Records of a type that is not known, and those of steps that the plan does not have, say nothing here.
        """
        history = cls(plan, meta)
        known = {step.id for step in plan.steps}
        for record in records:
            step = record.get("step", "")
            if step and step not in known:
                continue
            match record.get("type"):
                case "begin":
                    history.priors.setdefault(step, record.get("prior", {}))
                case "done":
                    history.results[step] = record.get("result", {})
                case "undoing":
                    history.undoing = True
                    history.why = record.get("why", "")
                case "undone":
                    history.undone.add(step)
                case "end":
                    history.end = record
        return history

    def begun(self) -> set[str]:
        """Steps that have to be undone when the move is."""
        return set(self.priors) - self.undone


class Journal:
    """Writes the journal of one move. Every record is on the lead box's disk before the call returns."""

    def __init__(self, boxes: Boxes, plan: Plan) -> None:
        self._boxes = boxes
        self.plan = plan
        self._lock = threading.Lock()

    def open(self, command: str) -> None:
        """Begin it: the whole plan goes with it, so that anyone can finish or undo the move."""
        plan = self.plan
        meta = {
            "operation": plan.operation,
            "from_layout": plan.from_layout,
            "to_layout": plan.to_layout,
            "from_generation": plan.from_generation,
            "generation": plan.generation,
            "who": whoami(),
            "command": command,
            "started": time.time(),
            "fleetctl": __version__,
        }
        self._lead.call("journal_open", move=plan.move, plan=plan.model_dump(mode="json"), meta=meta)

    def record(self, kind: str, **what: Any) -> Record:
        """A record that is like no other, so that one which is written again can be told from a second one."""
        return {"type": kind, "at": round(time.time(), 3), "id": secrets.token_hex(4), **what}

    def append(self, record: Record) -> None:
        """Write a record; writing it again changes nothing."""
        with self._lock:
            self._lead.call("journal_append", move=self.plan.move, record=record)

    @property
    def _lead(self) -> Any:
        return self._boxes[self.plan.lead]


def read_history(boxes: Boxes, lead: str, move: str) -> History:
    """The journal of a move as the lead box has it.

    Raises UnfinishedError when its plan is missing or damaged, or of a version that this one cannot carry out.
    """
    told = boxes[lead].call("journal_read", move=move) or {}
    folder = told.get("folder") or f"/var/lib/fleetctl/moves/{move}"
    meta = told.get("meta") or {}
    if not told.get("plan"):
        raise _without_plan(lead, move, folder, f"{folder}/plan.json is missing or damaged")
    try:
        plan = Plan.model_validate(told["plan"])
    except ValidationError as error:
        wrong = first_fault(error)
        if meta.get("fleetctl", __version__) == __version__:
            raise _without_plan(lead, move, folder, f"{folder}/plan.json is damaged: {wrong}") from error
        raise of_another_version(lead, move, meta, wrong) from error
    return History.of(plan, meta, told["records"])


def _without_plan(lead: str, move: str, folder: str, wrong: str) -> UnfinishedError:
    """The error for a move that nobody can finish or undo: what it was to do is not known any more."""
    return UnfinishedError(
        f"{lead}: move {move} can be neither finished nor undone: {wrong}",
        hint=f"look at `fleetctl status`, then remove {folder} on {lead} and bring the fleet into a layout with "
        "`fleetctl cutover --to LAYOUT`; the steps that the move had done are not undone by removing it",
    )


def of_another_version(lead: str, move: str, meta: Record, wrong: str) -> UnfinishedError:
    """The error for a journal that has something in it which this version does not know."""
    theirs, ours = meta.get("fleetctl", "unknown"), __version__
    return UnfinishedError(
        f"{lead}: the journal of move {move} is by fleetctl {theirs}, and {ours} cannot read it: {wrong}",
        hint=f"finish or undo the move with fleetctl {theirs}; nothing was changed",
    )
