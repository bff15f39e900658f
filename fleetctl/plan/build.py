"""Release against facts, through a playbook: the Plan. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from fleetctl.errors import RefusedError
from fleetctl.facts.operations import IN_PLACE
from fleetctl.facts.types import Observed
from fleetctl.plan.ahead import why_not_read_ahead
from fleetctl.plan.difference import Difference, compare
from fleetctl.plan.draft import Draft, Move
from fleetctl.plan.expand import CHANGES, STEPS, place
from fleetctl.plan.gap import gap_of
from fleetctl.plan.images import other_builds
from fleetctl.plan.others import Rest, rest_of_boxes
from fleetctl.plan.playbook import Playbook, PlaybookStage
from fleetctl.plan.refusals import refusals, unnamed_boxes, warnings
from fleetctl.plan.scores import unknown_scores
from fleetctl.plan.turns import rest, turns
from fleetctl.plan.types import FileDiff, Gap, Plan, PlannedStep, Sizing, Stage
from fleetctl.render.release import File, Release
from fleetctl.spec.units import gib


def build_plan(
    *,
    source: Release,
    target: Release,
    observed: Observed,
    questions: dict[str, dict[str, Any]],
    playbook: Playbook,
    operation: str,
    lead: str,
    move: str,
    generation: int | None,
    previous: int | None,
    difference: Difference | None = None,
    anew: Collection[str] = (),
    notes: Collection[str] = (),
    by: str = "",
    limit: float | None = None,
    why_held: str | None = None,
    beside: bool = False,
    sizings: tuple[Sizing, ...] = (),
) -> Plan:
    """The plan that brings the fleet, seen as ``observed``, from ``source`` to ``target``.

    ``difference`` is what is to be done, by default all that separates them; engines with an id in ``anew`` start
    again in any case. ``notes`` go with the warnings, ``by`` is the operator and ``limit`` the seconds that running
    requests get (default: the proxy's drain). ``why_held`` says why there is a gap: why engines change neither one at a
    time nor beside the old ones. ``beside``: the playbook starts new engines before the old ones stop.

    ``generation`` is the number under which the target is kept on the boxes (None: nothing of fleetctl stays) and
    ``previous`` the one a rollback from there returns to. Raises RefusedError with every reason at once.
    """
    refuse_if_unnamed(source, target, observed)
    back = operation == "rollback"
    if difference is None:
        difference = compare(source, target, observed, generation, anew, back=back)
    others = rest_of_boxes(target, observed, difference) if difference.boxes else Rest()
    # The way back, and an engine that starts again as it was, are not closed by what has changed meanwhile.
    lenient = operation not in ("cutover", *IN_PLACE)
    grown = [] if lenient else others.refusals
    move_ = Move(
        source, target, observed, difference, generation, lead, by, limit, beside=beside, back=back, lenient=lenient
    )
    steps: tuple[PlannedStep, ...] = ()
    if not difference.nothing():
        _refuse([*refusals(source, target, observed, difference, lenient=lenient), *grown])
        _refuse(_left_undone(playbook, move_))
        steps = _steps(playbook, move_)
    return Plan(
        move=move,
        fleet=target.fleet,
        operation=operation,
        playbook=playbook.name,
        from_layout=source.layout,
        from_generation=observed[lead].generation,
        to_layout=target.layout,
        generation=generation,
        previous=previous,
        lead=lead,
        boxes=tuple(observed),
        source=source,
        release=target,
        stages=tuple(Stage(name=stage.stage, summary=stage.summary) for stage in playbook.stages),
        steps=steps,
        diffs=_diffs(source, target, difference),
        budgets=target.budgets,
        sizings=sizings,
        gap=_gap(move_, playbook, why_held),
        others=others.lines,
        warnings=(
            *warnings(source, target, observed, difference, lenient=lenient),
            *_doubts(sizings),
            *unknown_scores(move_),
            *_peaks(sizings),
            *(reason for reason in others.refusals if reason not in grown),
            *others.warnings,
            *(other_builds(target, observed, generation) if back and generation is not None else ()),
            *notes,
        ),
        questions=questions,
        observed={box: facts.digest() for box, facts in observed.items()},
    )


def _doubts(sizings: tuple[Sizing, ...]) -> list[str]:
    return [
        f"{one.engine} may take more than its share: with the most overhead that is likely weights and "
        "kv_cache_memory: do not fit it"
        if one.exact
        else f"{one.engine} may not start: with the most overhead that is likely its cache is too small for one request"
        for one in sizings
        if one.in_doubt
    ]


def _peaks(sizings: tuple[Sizing, ...]) -> list[str]:
    return [
        f"{one.engine} was measured to take {gib(one.beyond)} more than its share for a while when it starts: so much "
        "less is left for everything else then"
        for one in sizings
        if one.beyond
    ]


def refuse_if_unnamed(source: Release, target: Release, observed: Observed) -> None:
    """Raises RefusedError when a box has a part in the move that was not looked at: nothing can be compared then."""
    _refuse(unnamed_boxes(source, target, observed))


def _refuse(reasons: list[str]) -> None:
    if reasons:
        raise RefusedError("the move is refused; nothing was changed:\n" + "\n".join(f"- {r}" for r in reasons))


def _left_undone(playbook: Playbook, move: Move) -> list[str]:
    """What the move has to change and the playbook has no step for: a copy of an earlier version's, for example."""
    used = {use.step for stage in playbook.stages for use in stage.steps}
    drafts = {name: list(STEPS[name](move)) for name in CHANGES if name not in used}
    return [
        f"the playbook {playbook.name} has no step {name}, and this has to be done: {found[0].summary}"
        for name, found in drafts.items()
        if found
    ]


def _steps(playbook: Playbook, move: Move) -> tuple[PlannedStep, ...]:
    """Steps in the order of the playbook, each after those before it on the same lanes.

    A stage without ``flow`` waits for everything before it; with it, only for what happened on its own lanes.
    One that is ``one_at_a_time`` is a chain of turns, each of which is a chain of steps; then comes what is in nobody's
    turn.
    """
    steps: list[PlannedStep] = []
    last: dict[str, set[str]] = {}
    floor: set[str] = set()
    for stage in playbook.stages:
        if not stage.flow:
            floor, last = _ends(steps), {}
        part = move
        if stage.one_at_a_time:
            steps += _in_turns(stage, move, steps)
            part = replace(move, difference=rest(move.target, move.observed, move.difference))
            floor = _ends(steps)
        for use in stage.steps:
            now: dict[str, set[str]] = {}
            for draft in _drafts(use.step, use.params, part):
                # A lane on which nothing has happened since the last wait for everything begins there.
                after = set[str]().union(*(last.get(lane, floor) for lane in draft.lanes))
                step = place(stage.stage, use.step, draft, after)
                steps.append(step)
                for lane in draft.lanes:
                    now.setdefault(lane, set()).add(step.id)
            last.update(now)
    return tuple(steps)


def _in_turns(stage: PlaybookStage, move: Move, before: list[PlannedStep]) -> list[PlannedStep]:
    """The turns of a stage, each after the one before it; the first after all ``before``."""
    chain: list[PlannedStep] = []
    last = _ends(before)
    for number, (engine, share) in enumerate(turns(move.target, move.observed, move.difference), 1):
        mine = replace(move, difference=share, turn=engine)
        for use in stage.steps:
            placed = [
                place(stage.stage, use.step, draft, last, (number, engine))
                for draft in _drafts(use.step, use.params, mine)
            ]
            last = {step.id for step in placed} or last
            chain += placed
    return chain


def _drafts(kind: str, params: Mapping[str, object], move: Move) -> list[Draft]:
    return list(STEPS[kind](move, **params))


def _ends(steps: list[PlannedStep]) -> set[str]:
    """Steps that no other waits for yet: together they imply all that came before."""
    waited_for = {before for step in steps for before in step.after}
    return {step.id for step in steps} - waited_for


def _diffs(source: Release, target: Release, difference: Difference) -> tuple[FileDiff, ...]:
    found = []
    for name, box in difference.boxes.items():
        before = {file.path: file for file in source.files.get(name, ())}
        after = {file.path: file for file in target.files.get(name, ())}
        for path in sorted({*box.install, *box.remove}):
            old = before.get(path)
            new = after.get(path) if path in box.install else None
            change = "removed" if new is None else "new" if old is None else "changed"
            diff = _unified(path, old, new)
            if not diff and old == new and old is not None and old.secrets:
                diff = f"# {path}: the same but for the value of a secret"
            found.append(FileDiff(box=name, path=path, change=change, diff=diff))
    return tuple(found)


def _unified(path: str, old: File | None, new: File | None) -> str:
    return "\n".join(
        difflib.unified_diff(
            old.content.splitlines() if old else [],
            new.content.splitlines() if new else [],
            "/dev/null" if old is None else path,
            "/dev/null" if new is None else path,
            lineterm="",
        )
    )


def _gap(move: Move, playbook: Playbook, why_held: str | None) -> Gap:
    difference = move.difference
    stopping = any(box.stop for box in difference.boxes.values())
    if difference.pool.open and difference.pool.start and not difference.start:
        return Gap(expected=None, why="as long as the pool starts and loads what is pinned")
    if difference.pool.start and not difference.start:
        return Gap(expected=0.0, why="requests wait in the queue of the pool meanwhile")
    if difference.pool.restart and not difference.start:
        return Gap(expected=0.0, why="requests of an engine that starts anew wait in the queue, or go to another box")
    if not difference.start and stopping and not difference.prove:
        return Gap(expected=None, why="for good: NOTHING of fleetctl serves afterwards, neither engines nor its proxy")
    if not difference.start:
        return Gap(expected=0.0, why=why_held or "no engine stops")
    if move.beside:
        return Gap(expected=0.0, why="old and new engines fit the boxes together: the old ones serve until then")
    if difference.served:
        return Gap(expected=0.0, why="another copy serves meanwhile")
    if any(stage.one_at_a_time for stage in playbook.stages):
        return Gap(expected=0.0, why="one copy at a time, while another serves")
    if difference.measuring is not None:
        return Gap(expected=None, why=f"as long as {difference.measuring.starts + 1} starts and loads take: {why_held}")
    if difference.trial is not None:
        return Gap(expected=None, why=f"as long as two starts take: {why_held}")
    gap = _gap_of_all(difference, move.observed)
    reasons = [gap.why, *([] if why_held is None else [why_held]), *_not_read_ahead(move, playbook)]
    return Gap(expected=gap.expected, why="; ".join(reasons))


def _not_read_ahead(move: Move, playbook: Playbook) -> list[str]:
    """Why the gap includes reading weights from the disk, box by box, where the playbook would read them ahead."""
    if not any(use.step == "read_ahead" for stage in playbook.stages for use in stage.steps):
        return []
    reasons = [why_not_read_ahead(move, name) for name, box in move.difference.boxes.items() if box.start]
    return [f"weights are not read ahead: {reason}" for reason in reasons if reason is not None]


def _gap_of_all(difference: Difference, observed: Observed) -> Gap:
    stopping = any(box.stop or box.supersede for box in difference.boxes.values())
    if not (stopping or difference.pool.stop):
        return Gap(expected=None, why="no engine of the fleet is up before the move")
    units = {f"{name}/{unit}" for name, box in difference.boxes.items() for unit in box.stop}
    return gap_of(difference.start, units, observed)
