"""Moves that are cut off: the client is killed at every step, and the next command finishes the move or undoes it.

Cutovers in both directions are cut at the beginning of every step, and taken up by the same command. Of rollbacks,
and of moves that are undone, a seeded choice of cuts is tried; with FLEETCTL_TEST_EVERY_CUT=1 every one, which takes
a quarter of an hour.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from operators import EVERY_CUT, OTHER, UNFINISHED, Event, Run

if TYPE_CHECKING:
    from interrupted import Subject

pytest_plugins = ["interrupted"]
CHOSEN = 3  # cuts of a move that are undone, when not every cut is tried


def is_step(event: Event, state: str, name: str) -> bool:
    """The event of this step. One that is so already counts for any state: there is nothing else of it to come."""
    return event["type"] == "step" and event["step"] == name and event["state"] in (state, "already")


def cut(run: Run, state: str, name: str) -> bool:
    """Kill the client at that event. False: the command ended before."""
    if run.until(lambda event: is_step(event, state, name)) is None:
        run.process.wait()
        return False
    run.kill()
    return True


def steps_of(run: Run) -> list[str]:
    """The steps of the plan that a command has just printed, in order."""
    plan = run.until(lambda event: event["type"] == "plan")
    assert plan is not None, run.story()
    return [step["id"] for step in plan["plan"]["steps"]]


MOVES = [(operation, to) for operation in ("cutover", "rollback") for to in OTHER]


@pytest.mark.parametrize(("operation", "to"), MOVES)
def test_a_move_that_is_cut_at_every_step_is_finished_by_the_same_command(
    subject: Subject, operation: str, to: str
) -> None:
    subject.be_in(OTHER[to], with_way_back=operation == "rollback")
    command = subject.move(operation, to)
    run = subject.operators.move(*command)
    steps = steps_of(run)
    assert cut(run, "begin", steps[0])
    tried = steps[1:] if EVERY_CUT or operation == "cutover" else steps[1 :: len(steps) // 6]
    for number, name in enumerate(tried):
        if number % 8 == 0:
            code, told = subject.operators.status()
            assert code == UNFINISHED
            assert (told["unfinished"]["operation"], told["unfinished"]["to_layout"]) == (operation, to)
            assert told["unfinished"]["who"]
        run = subject.operators.move(*command)
        if not cut(run, "begin", name):
            # What is done on two boxes at once may be done on this one before the kill that was meant for the other;
            # and the last kill may come after the last record.
            done = [is_step(event, "already", name) or event.get("state") == "nothing" for event in run.events]
            assert any(done), run.story()
            subject.be_in(OTHER[to], with_way_back=operation == "rollback")
            assert cut(subject.operators.move(*command), "begin", name)
            continue
        assert any("was cut off" in note["text"] for note in run.told("note")), run.story()
    subject.operators.do(*command)
    subject.is_whole_in(to, run.story())


def cuts_to_undo(steps: list[str], seed: str) -> list[tuple[str, str]]:
    """Where a move is cut to be undone: before and after each step, or a seeded choice of that."""
    every = [(state, name) for name in steps for state in ("begin", "done")]
    return every if EVERY_CUT else random.Random(seed).sample(every, CHOSEN)


@pytest.mark.parametrize(("operation", "to"), MOVES)
def test_a_move_that_was_cut_is_undone_by_rollback(subject: Subject, operation: str, to: str) -> None:
    subject.be_in(OTHER[to], with_way_back=operation == "rollback")
    command = subject.move(operation, to)
    back = ("rollback",) if operation == "cutover" else ("rollback", "--undo")
    run = subject.operators.move(*command)
    steps = steps_of(run)
    for state, name in cuts_to_undo(steps, f"{operation} {to}"):
        if run.process.poll() is not None:
            run = subject.operators.move(*command)
        if not cut(run, state, name) or subject.operators.status()[0] != UNFINISHED:
            subject.be_in(OTHER[to], with_way_back=True)  # the kill came after the last record: the move was done
            continue
        undo = subject.operators.do(*back)
        subject.is_whole_in(OTHER[to], f"cut at {state} of {name}\n{run.story()}\n{undo.story()}")


@pytest.mark.parametrize("to", OTHER if EVERY_CUT else ["replicas"])
def test_an_undo_that_is_cut_at_every_step_is_finished(subject: Subject, to: str) -> None:
    subject.be_in(OTHER[to])
    run = subject.operators.move("cutover", "--to", to)
    steps = steps_of(run)
    assert cut(run, "begin", steps[-1])
    cut_at: set[str] = set()
    while True:
        run = subject.operators.move("rollback")
        event = run.until(lambda event: event.get("state") == "undo" and event["step"] not in cut_at)
        if event is None:
            break
        run.kill()
        cut_at.add(event["step"])
    assert run.process.wait() == 0, run.story()
    assert len(cut_at) > len(steps) // 2, "an undo that ends while the client is killed takes its step out of the rest"
    subject.is_whole_in(OTHER[to], run.story())
