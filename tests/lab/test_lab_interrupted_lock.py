"""One operator at a time, and what Ctrl-C does."""

from __future__ import annotations

import json
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest
from operators import INTERRUPTED, LOCKED, STUCK, UNFINISHED, journal_of, last_move

if TYPE_CHECKING:
    from interrupted import Subject

pytest_plugins = ["interrupted"]
LOCK = "/var/lib/fleetctl/lock.json"


def test_a_second_operator_is_told_who_holds_the_fleet(subject: Subject) -> None:
    subject.be_in("split")
    first = subject.operators.move("cutover", "--to", "replicas")
    first.begun("stop_engine")
    second = subject.operators.move("rollback")
    assert second.end() == LOCKED
    told = second.said()
    assert f"pid {first.process.pid}" in told
    assert "fleetctl cutover --to replicas" in told
    assert "since" in told
    assert "@" in told
    assert first.end() == 0, first.story()
    subject.is_whole_in("replicas", first.story())


def test_of_two_who_start_at_once_exactly_one_moves_the_fleet(subject: Subject) -> None:
    subject.be_in("split")
    runs = [subject.operators.move("cutover", "--to", "replicas") for _ in range(3)]
    threads = [threading.Thread(target=run.end) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    codes = sorted(run.process.returncode for run in runs)
    moved = [run for run in runs if run.told("plan")]
    assert set(codes) <= {0, LOCKED}, [run.story() for run in runs]
    assert len(moved) == 1, [run.story() for run in runs]
    subject.is_whole_in("replicas", moved[0].story())


def test_a_client_that_falls_silent_keeps_its_lock_until_it_is_stale_and_loses_it_for_good(subject: Subject) -> None:
    subject.be_in("split")
    frozen = subject.operators.move("cutover", "--to", "replicas")
    frozen.begun("stop_engine")
    frozen.signal(signal.SIGSTOP)
    move = last_move(subject.lab, "box1")

    hasty = subject.operators.move("rollback", "--take-over")
    assert hasty.end() == LOCKED
    assert "the fleet is held" in hasty.said()

    # As if more than the 15 seconds had passed that a heartbeat may take.
    subject.lab.exec("box1", ["touch", "-d", "20 seconds ago", LOCK])
    asking = subject.operators.move("rollback")
    assert asking.end() == LOCKED
    assert "--take-over" in asking.said()

    taker = subject.operators.do("rollback", "--take-over")
    records = len(journal_of(subject.lab, "box1", move))
    subject.is_whole_in("split", taker.story())

    seen = len(frozen.events)
    frozen.signal(signal.SIGCONT)
    assert frozen.end() == LOCKED, frozen.story()
    assert "does not hold the fleet any more" in frozen.said()
    late = [event for event in frozen.events[seen:] if event.get("state") in ("done", "undo", "undoing", "undone")]
    assert not [event for event in late if event["at"] > taker.events[-1]["at"]], frozen.story()
    assert len(journal_of(subject.lab, "box1", move)) == records, "nothing was written after the loss"
    subject.is_whole_in("split", frozen.story())


def test_the_lock_of_a_client_on_another_machine_that_is_gone_is_free_after_a_few_seconds(subject: Subject) -> None:
    subject.be_in("split")
    run = subject.operators.move("cutover", "--to", "replicas")
    run.begun("await_free")
    run.kill()
    # As if the owner was a process of another machine: only its closed connection tells that it is gone.
    other = "import json,sys; p=sys.argv[1]; l=json.load(open(p)); l['owner']=''; json.dump(l,open(p,'w'))"
    subject.lab.exec("box1", ["python3", "-c", other, LOCK])
    next_one = subject.operators.do("rollback")
    assert any("is gone" in note["text"] for note in next_one.told("note")), next_one.story()
    subject.is_whole_in("split", next_one.story())


def test_a_damaged_lock_stands_in_nobodys_way(subject: Subject) -> None:
    subject.be_in("split")
    subject.lab.exec("box1", ["sh", "-c", f"printf '{{\"tok' > {LOCK}"])
    assert subject.operators.status()[0] == 0
    subject.operators.do("cutover", "--to", "replicas")
    subject.is_whole_in("replicas", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_undoes_the_move_and_gives_the_lock_back(subject: Subject, number: signal.Signals) -> None:
    subject.be_in("split")
    with subject.slow_loads(20):
        run = subject.operators.move("cutover", "--to", "replicas")
        run.begun("await_ready")
    run.signal(number)
    assert run.end() == INTERRUPTED, run.story()
    assert f"interrupted ({number.name})" in run.said()
    assert "undone" in run.said()
    subject.is_whole_in("split", run.story())


def test_ctrl_c_twice_leaves_everything_as_it_is(subject: Subject) -> None:
    subject.be_in("split")
    with subject.slow_loads(20):
        run = subject.operators.move("cutover", "--to", "replicas")
        run.begun("await_ready")
    run.signal(signal.SIGINT)
    assert run.until(lambda event: event["type"] == "move" and event["state"] == "undoing") is not None
    run.signal(signal.SIGINT)
    assert run.end() == STUCK, run.story()
    assert "left as it is" in run.said()
    code, told = subject.operators.status()
    assert code == UNFINISHED
    assert told["lock"] is None
    undo = subject.operators.do("rollback")
    subject.is_whole_in("split", undo.story())


def test_ctrl_c_before_anything_is_done_changes_nothing(subject: Subject) -> None:
    subject.be_in("split")
    move = last_move(subject.lab, "box1")
    for wait in (0.25, 0.5, 0.75):
        run = subject.operators.start("cutover", "--to", "replicas", "--yes")
        time.sleep(wait)
        if run.process.poll() is None:
            run.signal(signal.SIGINT)
        assert run.end() in (INTERRUPTED, -signal.SIGINT), run.story()
        if last_move(subject.lab, "box1") != move:
            break  # it had begun: that was the last of the waits
    subject.is_whole_in("split", "")


def test_ctrl_c_while_waiting_for_a_lock_is_no_harm_to_its_holder(subject: Subject) -> None:
    subject.be_in("split")
    record = {"token": "x", "who": "ann@desk", "host": "desk", "pid": 1, "owner": "", "command": "fleetctl cutover"}
    subject.lab.exec("box1", ["sh", "-c", f"cat > {LOCK}"], json.dumps(record | {"since": time.time()}))
    run = subject.operators.move("cutover", "--to", "replicas")
    assert run.until(lambda event: event["type"] == "note" and "ann@desk" in event["text"]) is not None, run.story()
    run.signal(signal.SIGINT)
    assert run.end() == INTERRUPTED
    assert json.loads(subject.lab.exec("box1", ["cat", LOCK]).stdout)["who"] == "ann@desk"
    subject.lab.exec("box1", ["rm", LOCK])
    subject.is_whole_in("split", "")
