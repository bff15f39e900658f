"""What there is to say beside the figures: a move under way, what is wrong, what should be known. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fleetctl.facts.assess import Assessment
from fleetctl.watch.sample import Sample
from fleetctl.watch.top.history import History


@dataclass(frozen=True)
class Remark:
    """One line. ``weight`` is shown as a word, so that it can be told without colours."""

    weight: Literal["move", "wrong", "note"]
    text: str


def remarks(
    sample: Sample | None, found: Assessment | None, history: History, failed: str | None = None
) -> list[Remark]:
    """What status says of the fleet (``found``; ``failed``: why that is not known), and what only the engines show."""
    told: list[Remark] = []
    if found is not None:
        told += _move(found)
        told += [Remark("wrong", problem) for problem in found.problems]
    elif failed is not None:
        told.append(Remark("wrong", f"the state of the fleet is not known: {failed}"))
    if sample is not None:
        told += [Remark("wrong", text) for text in _seen(sample, found, history)]
    if found is not None:
        told += [Remark("note", note) for note in found.notes]
    return told


def _move(found: Assessment) -> list[Remark]:
    move = found.unfinished
    if move is not None:
        told = f"{f'{move.operation} {move.road}'.strip()} by {move.who}"
        if found.under_way():
            return [Remark("move", f"under way: {told}")]
        return [Remark("wrong", f"cut off: {told}; {move.ways}")]
    return [Remark("move", f"held: {found.lock}")] if found.lock is not None else []


def _seen(sample: Sample, found: Assessment | None, history: History) -> list[str]:
    """What the sample shows and status does not say in its own words."""
    said = found.problems if found is not None else []
    told = []
    away = {box: one.why for box, one in sample.boxes.items() if one.why is not None}
    for box, why in away.items():
        if not any(problem.startswith(box) for problem in said):
            told.append(f"{box} is not known: {why.removeprefix(f'{box}: ')}")
    for copy in sample.copies:
        if copy.why is not None and copy.boxes[0] not in away and copy.unit == "active":
            told.append(f"{copy.id} is not known: {copy.why}")
        elif copy.server == "HUNG":
            told.append(f"{copy.id} is hung: the proxy sends it nothing, for it leaves completions unanswered")
        elif history.stuck(copy.id):
            told.append(f"{copy.id}: requests wait, none runs, and no token is read or made; it may hang")
    for program in sample.pool.programs if sample.pool is not None else ():
        where = f"the {program.kind} of the pool on {program.box}"
        if program.state == "active" and program.why is not None and program.box not in away:
            told.append(f"{where} is not known: {program.why}")
        elif program.state == "active" and program.connected is False:
            told.append(f"{where} has no connection to NATS")
    for engine in sample.pool.engines if sample.pool is not None else ():
        if engine.phase == "failed":
            told.append(f"{engine.id} could not be loaded: {engine.reason or 'no reason told'}")
    if sample.layout is None and not away:
        told.append("no layout of fleetctl is live")
    return told
