"""The moves an operator can ask for, from facts to a plan."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fleetctl.errors import LockedError, RefusedError, SpecError, UnfinishedError
from fleetctl.facts.gather import gather, questions
from fleetctl.facts.operations import IN_PLACE, STAYING, with_article
from fleetctl.facts.types import MoveFacts, Observed, lead_of, unfinished
from fleetctl.plan.beside import why_not_beside
from fleetctl.plan.build import build_plan, refuse_if_unnamed
from fleetctl.plan.difference import Difference, compare
from fleetctl.plan.playbook import Playbook
from fleetctl.plan.pool import why_not_drained
from fleetctl.plan.turns import why_not_one_at_a_time
from fleetctl.plan.types import Plan
from fleetctl.render.layout import render_layout
from fleetctl.render.release import Engine, File, Release
from fleetctl.run.gate_tasks import gate_tasks
from fleetctl.run.knowing import refuse_unknown_flags
from fleetctl.run.secrets import Expected, expected
from fleetctl.run.sizing import refuse_what_cannot_start, size_up, sizings
from fleetctl.run.subject import Subject as Subject  # told here too: plans are made for one

Books = Callable[[str], Playbook]
"""The playbook of a name: ``cutover``, ``make_before_break``, ``rolling``, ``rollback``."""


@dataclass(frozen=True)
class Look:
    """Facts of every box, and what was asked for them."""

    asked: dict[str, dict[str, Any]]
    observed: Observed
    notes: tuple[str, ...] = ()
    """What the look could not tell."""


def look(subject: Subject, releases: tuple[Release, ...] = (), fill: Callable[[File], str] | None = None) -> Look:
    """Facts of every box, asked for what the file and the releases mention.

    With ``fill``, which reads secrets, the boxes also say which files have other secrets in them than those of now.
    """
    asked = questions(subject.fleet, releases)
    wanted = expected(releases, fill) if fill else Expected()
    unread = tuple(f"{why}: whether that secret has changed is not known" for why in wanted.unread)
    return Look(asked, gather(subject.boxes, asked, wanted.digests), unread)


def wanted_release(subject: Subject, layout: str) -> Release:
    """The release of a layout of the file, with the files of tasks that its gates ask.

    Raises SpecError, with the nearest name, when there is no such layout, or where a file of tasks is wrong.
    """
    tasks = gate_tasks(subject.fleet, subject.text, subject.file)
    return render_layout(subject.fleet, layout, spec_text=subject.text, tasks=tasks)


def live_release(observed: Observed, lead: str, fleet: str) -> Release:
    """The release the fleet is in; one without engines when fleetctl has put none there."""
    return observed[lead].release or Release(fleet=fleet, layout=None)


def live_layout(observed: Observed) -> str | None:
    """The layout that the boxes say they are in."""
    return next((facts.release.layout for facts in observed.values() if facts.release), None)


def forget_ended(subject: Subject, observed: Observed) -> None:
    """Boxes that were away at the end of a move hear of it now, so that their guards act again. No move is open."""
    for name, facts in observed.items():
        if facts.moving is not None:
            subject.boxes[name].call("move_end", move=facts.moving)


def new_move_name() -> str:
    """Identity of a move: UTC time, so that names sort, and a few letters, so that two cannot be the same."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) + "-" + secrets.token_hex(2)


def measured_weights(observed: Observed, releases: tuple[Release, ...]) -> dict[str, int]:
    """Model → bytes of its weights folder, the largest found on any box."""
    found: dict[str, int] = {}
    for release in releases:
        for engine in release.all_engines:
            for rank in engine.ranks:
                seen = observed[rank.box].paths.get(engine.weights)
                if seen is not None and seen.size:
                    found[engine.model] = max(found.get(engine.model, 0), seen.size)
    return found


def plan_cutover(
    subject: Subject,
    wanted: Release,
    seen: Look,
    books: Books,
    operation: str = "cutover",
) -> Plan:
    """The plan that brings the fleet, looked at with the release that is wanted in mind, into that release.

    Engines of one layout change one at a time where ``operation`` is one of IN_PLACE and another copy serves meanwhile;
    those of another layout start beside the old ones where they fit. Everything else stops the old ones first.
    """
    fleet, observed = subject.fleet, seen.observed
    target = target_of(subject, wanted, observed)
    lead = lead_of(observed, fleet.proxy.lead)
    source = live_release(observed, lead, fleet.fleet)
    numbers = [number for facts in observed.values() for number in facts.generations]
    current = observed[lead].generation
    same = current is not None and same_on_boxes(source, target)
    # With other secrets it is another generation, so that a rollback brings those of before back.
    stays = same and not any(facts.stale for facts in observed.values())
    generation = current if stays else max(numbers, default=0) + 1
    meta = observed[lead].generations.get(current or 0) or {}
    target = source if same else target
    refuse_if_unnamed(source, target, observed)
    difference = compare(source, target, observed, generation)
    _refuse_drained(target, observed, difference)
    if operation in IN_PLACE:
        why = why_not_one_at_a_time(source, target, observed, difference) if difference.start else None
        why = "the pool changes as a whole" if why is None and difference.pool.any() else why
        playbook, beside = books("rolling" if why is None else "cutover"), False
        why = None if why is None else f"not one at a time: {why}"
    else:
        playbook, why = _book_of_move(books, "cutover", source, target, observed, difference)
        beside = why is None
    here = [engine for engine in difference.start if _programs_there(engine, observed)]
    here += [one for one in _lodging(difference) if one.runtime != "encoder" and _programs_there(one, observed)]
    unasked = refuse_unknown_flags(fleet, subject.boxes, target.layout, here)
    forecasts = size_up(fleet, subject.boxes, target, with_cache(difference))
    refuse_what_cannot_start(forecasts)
    return build_plan(
        source=source,
        target=target,
        observed=observed,
        questions=seen.asked,
        playbook=playbook,
        operation=operation,
        lead=lead,
        move=new_move_name(),
        generation=generation,
        previous=meta.get("previous") if stays else current,
        difference=difference,
        notes=(*seen.notes, *unasked),
        why_held=why,
        beside=beside,
        sizings=sizings(forecasts),
    )


def _refuse_drained(target: Release, observed: Observed, difference: Difference) -> None:
    """Raises RefusedError where programs of a pool have to be seen at work on a box that is drained."""
    why = why_not_drained(target, observed, difference.pool)
    if why:
        raise RefusedError(f"{'; '.join(why)}; nothing was changed", hint="put it back first")


def with_cache(difference: Difference) -> list[Engine]:
    """Engines that start, or may be loaded, and keep a cache in what their share leaves. Those of a pool that embed or
    rank do without one."""
    return [*difference.start, *(engine for engine in _lodging(difference) if engine.task == "generate")]


def _lodging(difference: Difference) -> list[Engine]:
    """Engines of the pool that are new on a box, or new builds. Encoders are of the same fleetctl as this."""
    return [engine for box in difference.boxes.values() for engine, _ in box.lodging.values()]


def _programs_there(engine: Engine, observed: Observed) -> bool:
    """Its program is on every box, or its image may be; one that is missing is told among the reasons of a refusal."""
    seen = [observed[rank.box].paths.get(engine.binary or "") for rank in engine.ranks]
    return engine.binary is None or all(path is not None and path.executable for path in seen)


def _book_of_move(
    books: Books, name: str, source: Release, target: Release, observed: Observed, difference: Difference
) -> tuple[Playbook, str | None]:
    """The playbook of a move between layouts, and why the new engines are not started beside the old ones.

    Raises RefusedError for one that would do so although something stands in the way.
    """
    why = why_not_beside(source, target, observed, difference)
    book = books("make_before_break" if why is None else name)
    if why is not None and book.name == "make_before_break" and difference.start:
        raise RefusedError(
            f"the playbook {book.name} starts new engines beside the old ones, and {why}; nothing was changed",
            hint=f"playbooks/{name}.yaml stops the old ones first",
        )
    if why is None and book.name != "make_before_break":
        why = f"the playbook {book.name} is used as it is"
    return book, why


def target_of(subject: Subject, wanted: Release, observed: Observed) -> Release:
    """The release with the sizes of the weights that lie on the boxes."""
    weights = measured_weights(observed, (wanted,))
    if not weights or wanted.layout is None:
        return wanted
    return render_layout(subject.fleet, wanted.layout, weights=weights, spec_text=subject.text, tasks=wanted.tasks)


def same_on_boxes(one: Release, other: Release) -> bool:
    """The two put the same on the boxes; the comments of the file they were made from may differ."""
    blank = {"spec": ""}
    return one.model_copy(update=blank) == other.model_copy(update=blank)


def plan_rollback(subject: Subject, seen: Look, books: Books, to: int | None = None) -> Plan:
    """The plan that brings the fleet back to an earlier generation, by default the one before.

    Before the first generation, as number 0, lies what the boxes ran without fleetctl; one rollback after another does
    not get there without being told. Raises RefusedError when there is nothing to go back to.
    """
    observed = seen.observed
    lead = lead_of(observed, subject.fleet.proxy.lead)
    current = observed[lead].generation
    if current is None and observed[lead].notes:
        raise RefusedError(
            f"there is nothing to roll back: {lead}: {'; '.join(observed[lead].notes)}",
            hint="`fleetctl cutover --to LAYOUT` puts a layout in place",
        )
    if current is None:
        raise RefusedError("there is nothing to roll back: no layout is live", hint="fleetctl status shows more")
    meta = observed[lead].generations.get(current)
    if meta is None:
        raise RefusedError(
            f"{lead}: what it keeps of generation {current}, which is current, is not complete",
            hint="`fleetctl cutover --to LAYOUT` puts a layout in place",
        )
    number = (to or None) if to is not None else meta.get("previous")
    if number is None and to is None and (risk := _why_not_to_the_end(observed)):
        raise RefusedError(
            f"{risk}, and before generation {current} lies what the boxes ran without fleetctl",
            hint="`fleetctl rollback --to 0` goes back there; `fleetctl history` shows what was changed",
        )
    if number == current:
        raise RefusedError(f"generation {current} is the current one")
    previous = None
    target = Release(fleet=subject.fleet.fleet, layout=None)
    if number is not None:
        kept = subject.boxes[lead].call("generation_read", number=number)
        if kept is None:
            have = ", ".join(f"{n} ({(meta or {}).get('layout')})" for n, meta in observed[lead].generations.items())
            raise RefusedError(f"{lead} does not keep a generation {number}", hint=f"it has {have}")
        target = Release.model_validate(kept["release"])
        previous = kept["meta"].get("previous")
    source = live_release(observed, lead, subject.fleet.fleet)
    again = look(subject, (target,))
    observed = again.observed if number is None else _with_kept_secrets(subject, target, again.observed, number)
    refuse_if_unnamed(source, target, observed)
    difference = compare(source, target, observed, number, back=True)
    _refuse_drained(target, observed, difference)
    playbook, why = _book_of_move(books, "rollback", source, target, observed, difference)
    return build_plan(
        source=source,
        target=target,
        observed=observed,
        questions=again.asked,
        playbook=playbook,
        operation="rollback",
        lead=lead,
        move=new_move_name(),
        generation=number,
        previous=previous,
        difference=difference,
        notes=_not_taken_back(observed),
        why_held=why,
        beside=why is None,
    )


def _why_not_to_the_end(observed: Observed) -> str:
    """Why a rollback must not end everything unless it is told to; empty where the last move to another generation is
    known, and was none itself. What stays in a generation is not what a rollback takes back.

    Boxes tell of their last moves alone: many that stayed in a generation may hide the one that did not.
    """
    moved = [move for move in _done(observed) if not _stays(move)]
    if not moved:
        return "what was done since the last move to another generation hides which one that was"
    return "the last move to another generation was a rollback" if moved[-1].operation == "rollback" else ""


def _done(observed: Observed) -> list[MoveFacts]:
    """The moves that came to their end, oldest first."""
    ended = [move for facts in observed.values() for move in facts.moves if (move.end or {}).get("result") == "done"]
    return sorted(ended, key=lambda move: (move.written, move.move))


def _stays(move: MoveFacts) -> bool:
    return move.operation in STAYING or (move.generation is not None and move.generation == move.from_generation)


def _not_taken_back(observed: Observed) -> list[str]:
    """That a rollback is about layouts, where the last change was in one."""
    last = next(reversed(_done(observed)), None)
    if last is None or not _stays(last):
        return []
    told = f"the last change, {with_article(last.operation)} by {last.who}, stayed in the generation that is live"
    back = f"`fleetctl history {last.move}` has the commands that take its repairs back"
    return [f"{told}: this rollback does not take it back" + (f"; {back}" if last.operation == "doctor" else "")]


def refuse_changed(subject: Subject, plan: Plan) -> None:
    """Raises RefusedError when a box is no longer as a saved plan saw it, and SpecError for a plan of other boxes."""
    unknown = sorted(set(plan.boxes) - set(subject.boxes))
    if unknown or plan.fleet != subject.fleet.fleet:
        raise SpecError(
            f"the plan is for fleet {plan.fleet} with the boxes {', '.join(plan.boxes)}",
            hint="name the fleet.yaml that it was made with: --fleet FILE",
        )
    now = gather(subject.boxes, {**questions(subject.fleet), **plan.questions})
    changed = [box for box in plan.boxes if now[box].digest() != plan.observed[box]]
    if changed:
        raise RefusedError(
            f"{', '.join(changed)} changed since the plan was made; nothing was changed now",
            hint="make the plan again and look at it",
        )


def _with_kept_secrets(subject: Subject, target: Release, observed: Observed, number: int) -> Observed:
    """The same facts, in which files are stale whose secrets are not those that generation ``number`` was kept with."""
    found = dict(observed)
    for box, facts in observed.items():
        paths = [file.path for file in target.files.get(box, ()) if file.secrets]
        if paths and number in facts.generations:
            folder = f"/etc/fleetctl/generations/{number}/files"
            told = subject.boxes[box].call("installed", folder=folder, paths=paths, absent=[])
            found[box] = facts.model_copy(update={"stale": tuple(told["differ"])})
    return found


def refuse_unfinished(observed: Observed) -> None:
    """Raises UnfinishedError when a move was cut off."""
    found = unfinished(observed)
    if found is None:
        return
    box, move = found
    lock = observed[box].lock
    mine = lock is not None and (lock.host, lock.pid) == (os.uname().nodename, os.getpid())
    if lock is not None and lock.alive and not mine:
        raise LockedError(f"{with_article(move.operation)} is under way: {lock}", hint="wait until it is done")
    where = f" ({move.road})" if move.road else ""
    raise UnfinishedError(f"{with_article(move.operation)}{where} by {move.who} was cut off", hint=move.ways)
