"""What the boxes remember of every change, as values."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError, field_validator

from fleetctl.errors import BoxError, FleetError
from fleetctl.facts.types import Lock, Seen, first_fault
from fleetctl.remote.boxes import Boxes
from fleetctl.remote.connection import BoxConnection

LIMIT = 30.0  # seconds that a box has for its answer


class ScoreTold(Seen):
    """What an engine scored in a suite (of 100) before it got traffic, and what the build before it had."""

    score: float
    before: float | None = None

    def __str__(self) -> str:
        return f"{self.score:.0f}" if self.before is None else f"{self.before:.0f} → {self.score:.0f}"


class MoveTold(Seen):
    """A move as a box remembers it. ``started`` and ``ended`` are by the operators' clocks, ``written`` by the box's.

    ``result`` is None without an end; ``by`` is who ended it; ``gap`` in seconds, ``cut`` in requests, where measured.
    """

    move: str
    written: float
    operation: str
    from_layout: str | None = None
    to_layout: str | None = None
    from_generation: int | None = None
    generation: int | None = None
    who: str = "somebody"
    command: str | None = None
    started: float | None = None
    ended: float | None = None
    result: str | None = None
    why: str | None = None
    by: str | None = None
    gap: float | None = None
    cut: int | None = None
    scores: dict[str, dict[str, ScoreTold]] | None = None
    """Engine → suite → its score."""

    @field_validator("scores", mode="before")
    @classmethod
    def _suites(cls, scores: Any) -> Any:
        """Moves of earlier versions have the score in tool use alone."""
        if not isinstance(scores, dict):
            return scores
        return {
            engine: {"tools": told} if isinstance(told, dict) and "score" in told else told
            for engine, told in scores.items()
        }


class Act(Seen):
    """Something that a guard did; ``at`` is in epoch seconds."""

    at: float
    kind: str
    unit: str = ""
    why: str = ""


class GenerationTold(Seen):
    """A generation that a box keeps."""

    layout: str | None = None
    move: str | None = None


class HistoryFacts(Seen):
    """All that one box remembers, oldest first."""

    moves: tuple[MoveTold, ...] = ()
    acts: tuple[Act, ...] = ()
    generations: dict[int, GenerationTold] = {}
    current: int | None = None
    lock: Lock | None = None

    @field_validator("moves", mode="before")
    @classmethod
    def _moves(cls, rows: Any) -> Any:
        """One that was damaged hides no other, and it is still a change."""
        return [row if _fits(MoveTold, row) else _damaged(row) for row in rows]

    @field_validator("acts", mode="before")
    @classmethod
    def _acts(cls, rows: Any) -> Any:
        return [row for row in rows if _fits(Act, row)]


def _fits(kind: type[Seen], row: Any) -> bool:
    try:
        kind.model_validate(row)
    except ValidationError:
        return False
    return True


def _damaged(row: Any) -> Any:
    kept = {key: row.get(key) for key in ("move", "written")} if isinstance(row, dict) else row
    return {**kept, "operation": "change", "result": "not known", "why": "what is kept of it was damaged"}


def gather_history(boxes: Boxes, last: int) -> tuple[dict[str, HistoryFacts], dict[str, FleetError]]:
    """What the connected boxes remember, the ``last`` moves and acts of each, and why others could not tell."""
    failed: dict[str, FleetError] = {}

    def ask(box: BoxConnection) -> HistoryFacts | None:
        try:
            return HistoryFacts.model_validate(box.call("history", last=last, timeout=LIMIT))
        except ValidationError as error:
            failed[box.name] = BoxError(box.name, f"what it remembers is not understood: {first_fault(error)}")
        except FleetError as error:
            failed[box.name] = error
        return None

    told = boxes.each(ask)
    return {name: facts for name, facts in told.items() if facts is not None}, failed


def read_move(boxes: Boxes, move: str) -> tuple[str, dict[str, Any]] | None:
    """The box that has the journal of a move, and the journal: ``plan``, ``meta`` and ``records``; None: none has."""
    told = boxes.each(lambda box: box.call("journal_read", move=move, timeout=LIMIT))
    # On other boxes a move has a folder too, with what undo needs there.
    return next(((box, dict(journal)) for box, journal in told.items() if journal and journal["records"]), None)


class Asked(Seen):
    """A request as it was sent. ``length`` is that of the whole, also where only both ends were kept."""

    method: str
    path: str
    length: int
    text: str


class Answered(Seen):
    """What came back to it, in bytes and seconds; ``status`` 0: nothing did. ``wrong`` says how it broke off."""

    status: int
    seconds: float
    length: int
    text: str
    wrong: str = ""


class ExchangeTold(Seen):
    """One request and its response."""

    request: Asked
    response: Answered


class GateFailure(Seen):
    """A gate that failed in a move, with what was asked and answered; ``more`` exchanges are not kept."""

    engine: str
    gate: str
    why: str
    path: str
    at: float | None = None
    exchanges: tuple[ExchangeTold, ...] = ()
    more: int = 0


def read_gate_failures(box: BoxConnection, move: str) -> list[GateFailure]:
    """The gates that failed in a move, as the box with its journal kept them. Damaged ones are left out."""
    rows = box.call("gate_failures", move=move, timeout=LIMIT)
    return [GateFailure.model_validate(row) for row in rows if _fits(GateFailure, row)]
