"""The history of the fleet from what each box remembers, and the steps of one move. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetctl.facts.history import Act, HistoryFacts, MoveTold
from fleetctl.facts.types import suite_name
from fleetctl.run.control import INTERRUPTED, ON_REQUEST

GUARD = "guard"
CUT_OFF, UNDER_WAY, FAILED, UNDONE, DONE = "cut off", "under way", "failed", "undone", "done"


@dataclass(frozen=True)
class Change:
    """One change of the fleet. ``at`` and ``took`` are seconds, ``at`` since the epoch; None: not known.

    ``operation`` is that of a move, or what a guard did to ``unit``. ``result`` is done, undone (on request), failed
    (and undone), cut off or under way; ``ended_by`` is there where somebody else ended it.
    """

    at: float
    boxes: tuple[str, ...]
    who: str
    operation: str
    result: str
    move: str | None = None
    command: str | None = None
    from_layout: str | None = None
    to_layout: str | None = None
    from_generation: int | None = None
    generation: int | None = None
    why: str | None = None
    took: float | None = None
    gap: float | None = None
    cut: int | None = None
    ended_by: str | None = None
    unit: str | None = None
    scores: dict[str, str] = field(default_factory=dict)
    """Engine → its scores, such as ``tools 75 → 86, tasks.jsonl 91 → 93``."""

    @property
    def by_guard(self) -> bool:
        """No operator did it."""
        return self.who == GUARD


def changes(told: Mapping[str, HistoryFacts], last: int) -> list[Change]:
    """The last changes, the newest first. A move that several boxes remember is one of them."""
    boxes: dict[str, list[str]] = {}
    moves: dict[str, MoveTold] = {}
    for box, facts in told.items():
        for move in facts.moves:
            boxes.setdefault(move.move, []).append(box)
            known = moves.get(move.move)
            if known is None or (known.result is None and move.result is not None):
                moves[move.move] = move
    locks = [facts.lock for facts in told.values() if facts.lock is not None and facts.lock.alive]
    open_moves = [name for name, move in moves.items() if move.result is None]
    found = [_of_move(move, tuple(boxes[name]), alive=bool(locks)) for name, move in moves.items()]
    found += [_of_guard(act, box) for box, facts in told.items() for act in facts.acts]
    found.sort(key=lambda change: change.at, reverse=True)
    shown = found[: max(last, 0)]
    # One that was cut off has to be finished or undone, however long ago that was.
    return shown + [change for change in found[len(shown) :] if change.move in open_moves]


def _of_move(move: MoveTold, boxes: tuple[str, ...], *, alive: bool) -> Change:
    took = None
    if move.started is not None and move.ended is not None and move.ended >= move.started:
        took = round(move.ended - move.started, 3)
    return Change(
        at=move.written or move.started or 0.0,
        boxes=boxes,
        who=move.who,
        operation=move.operation,
        result=_result(move, alive=alive),
        move=move.move,
        command=move.command,
        from_layout=move.from_layout,
        to_layout=move.to_layout,
        from_generation=move.from_generation,
        generation=move.generation,
        why=move.why,
        took=took,
        gap=move.gap,
        cut=move.cut,
        scores={
            engine: ", ".join(f"{suite_name(suite)} {told[suite]}" for suite in sorted(told, key=_tools_first))
            for engine, told in (move.scores or {}).items()
        },
        ended_by=move.by if move.by != move.who else None,
    )


def _tools_first(suite: str) -> tuple[bool, str]:
    return suite != "tools", suite


def _result(move: MoveTold, *, alive: bool) -> str:
    if move.result is None:
        return UNDER_WAY if alive else CUT_OFF
    if move.result != "undone":
        return move.result
    wanted = not move.why or move.why.startswith((INTERRUPTED, ON_REQUEST))
    return UNDONE if wanted else FAILED


def _of_guard(act: Act, box: str) -> Change:
    kind = "" if act.kind == "note" else act.kind.replace("_", " ")
    what, _, why = act.why.partition(": ") if not kind else (kind, "", act.why)
    return Change(
        at=act.at, boxes=(box,), who=GUARD, operation=what, result=DONE, unit=act.unit or None, why=why or None
    )


def find(told: Mapping[str, HistoryFacts], name: str) -> list[str]:
    """Names of the moves that a person may mean: that very one, or those of which this is the beginning or the end."""
    names = {move.move for facts in told.values() for move in facts.moves}
    if name in names:
        return [name]
    return sorted(one for one in names if one.startswith(name) or one.endswith(name))


# The steps of one move


@dataclass(frozen=True)
class StepTold:
    """One step of a move. ``began`` is in epoch seconds, ``took`` in seconds; None: never begun, or not ended.

    ``state`` is done, undone, begun (cut off, or what failed) or waiting.
    """

    id: str
    stage: str
    summary: str
    state: str
    began: float | None = None
    took: float | None = None


def steps_of(journal: Mapping[str, Any]) -> list[StepTold]:
    """The steps of a move in the order of its plan, whatever version wrote it; those that were never begun too.

    Where the plan is lost, those that the records name.
    """
    began: dict[str, float] = {}
    ended: dict[str, float] = {}
    state: dict[str, str] = {}
    words = {"begin": "begun", "done": DONE, "undone": UNDONE}
    for record in journal["records"]:
        step, kind, at = record.get("step"), record.get("type"), record.get("at")
        if not isinstance(step, str) or kind not in words:
            continue
        state[step] = words[kind]
        if isinstance(at, int | float):
            began.setdefault(step, at)
            if kind == "done":
                ended.setdefault(step, at)
    planned = (journal.get("plan") or {}).get("steps") or [{"id": step} for step in state]
    return [
        StepTold(
            id=(name := str(step.get("id", ""))),
            stage=str(step.get("stage", "")),
            summary=str(step.get("summary", name)),
            state=state.get(name, "waiting"),
            began=began.get(name),
            took=round(ended[name] - began[name], 3) if name in ended and ended[name] >= began[name] else None,
        )
        for step in planned
        if isinstance(step, dict)
    ]
