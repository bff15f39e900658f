"""What the journal of a move tells, and who a lock says is gone."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

from fleetctl.errors import UnfinishedError
from fleetctl.plan.types import Gap, Plan, PlannedStep
from fleetctl.render.release import Release
from fleetctl.run.journal import History, read_history
from fleetctl.run.measures import measures
from fleetctl.run.owner import is_gone, myself

Record = dict[str, Any]


def plan_of(*steps: PlannedStep) -> Plan:
    release = Release(fleet="lab", layout=None)
    return Plan(
        move="m",
        fleet="lab",
        operation="cutover",
        playbook="cutover",
        from_layout="split",
        from_generation=1,
        to_layout="replicas",
        generation=2,
        previous=1,
        lead="box1",
        boxes=("box1",),
        source=release,
        release=release,
        stages=(),
        steps=steps,
        gap=Gap(expected=None, why=""),
    )


def step(name: str, kind: str = "gate", **params: Any) -> PlannedStep:
    return PlannedStep(id=name, kind=kind, stage="s", box="box1", target=name, summary=name, params=params)


def history(*records: Record) -> History:
    return History.of(plan_of(step("a"), step("b")), {}, list(records))


def test_a_step_that_was_begun_and_not_done_has_to_be_undone() -> None:
    told = history({"type": "begin", "step": "a", "prior": {"was": 1}})
    assert told.begun() == {"a"}
    assert told.priors == {"a": {"was": 1}}
    assert told.results == {}


def test_the_first_prior_of_a_step_counts_because_later_ones_saw_it_half_done() -> None:
    told = history(
        {"type": "begin", "step": "a", "prior": {"was": 1}}, {"type": "begin", "step": "a", "prior": {"was": 2}}
    )
    assert told.priors["a"] == {"was": 1}


def test_a_step_that_was_undone_is_not_undone_again() -> None:
    told = history(
        {"type": "begin", "step": "a", "prior": {}},
        {"type": "done", "step": "a", "result": {"x": 1}},
        {"type": "begin", "step": "b", "prior": {}},
        {"type": "undoing", "why": "a gate failed"},
        {"type": "undone", "step": "b", "result": {}},
    )
    assert told.begun() == {"a"}
    assert (told.undoing, told.why) == (True, "a gate failed")
    assert told.end is None


def test_a_record_that_is_there_twice_says_the_same() -> None:
    once: list[Record] = [
        {"type": "begin", "step": "a", "prior": {}},
        {"type": "done", "step": "a", "result": {"x": 1}},
        {"type": "end", "result": "done"},
    ]
    twice = [record for record in once for _ in range(2)]
    assert history(*once) == history(*twice)


def test_records_of_a_newer_version_that_say_nothing_here_are_ignored() -> None:
    told = history(
        {"type": "weather", "step": "a", "sun": True},
        {"type": "begin", "step": "a", "prior": {}, "mood": "good"},
        {"type": "begin", "step": "not of this plan", "prior": {}},
        {"kind": "without a type"},
    )
    assert told.begun() == {"a"}


class Told:
    """A box that answers journal_read."""

    def __init__(self, answer: Record) -> None:
        self._answer = answer

    def call(self, op: str, **args: Any) -> Record:
        assert op == "journal_read"
        return self._answer


def test_a_plan_with_something_unknown_in_it_is_refused_with_both_versions() -> None:
    plan = plan_of().model_dump(mode="json") | {"moon_phase": 3}
    boxes: Any = {"box1": Told({"plan": plan, "meta": {"fleetctl": "9.9.9"}, "records": []})}
    with pytest.raises(UnfinishedError) as caught:
        read_history(boxes, "box1", "m")
    assert "moon_phase" in str(caught.value)
    assert "9.9.9" in str(caught.value)


def test_measures_of_a_move_come_from_its_results() -> None:
    ranks = [{"box": "box1", "unit": "u.service", "engine": "replicas/m@1"}]
    plan = plan_of(
        step("hold", "hold"),
        step("stop", "stop_engine", unit="old.service"),
        step("start", "start_engine", unit="u.service"),
        step("ready", "await_ready", engine="replicas/m@box1", ranks=ranks),
        step("open1", "open"),
        step("open2", "open"),
    )
    results: dict[str, Record] = {
        "hold": {"held_from": 100.0},
        "stop": {"took": 0.5},
        "start": {"at": 101.0},
        "ready": {"ready_at": 104.5, "waited": 3.0},
        "open1": {"open_at": 105.0},
        "open2": {"open_at": 106.0},
    }
    told = measures(plan, results)
    assert told["gap"] == 5.0
    assert told["loads"] == {"replicas/m@box1": 3.5}
    assert told["stops"] == {"box1/old.service": 0.5}


def test_the_load_of_a_split_is_told_by_the_clock_of_its_head() -> None:
    ranks = [{"box": "box1", "unit": "u.service"}, {"box": "box2", "unit": "u.service"}]
    start1, start2 = step("start1", "start_engine", unit="u.service"), step("start2", "start_engine", unit="u.service")
    plan = plan_of(
        start1, start2.model_copy(update={"box": "box2"}), step("ready", "await_ready", engine="split/m", ranks=ranks)
    )
    told = measures(plan, {"start1": {"at": 101.0}, "start2": {"at": 5.0}, "ready": {"ready_at": 104.5}})
    assert told["loads"] == {"split/m": 3.5}, "box2's clock is 96 seconds behind"


@pytest.mark.parametrize("missing", ["hold", "open1"])
def test_without_a_hold_or_an_opening_there_is_no_gap_to_tell(missing: str) -> None:
    plan = plan_of(step("hold", "hold"), step("open1", "open"))
    results: dict[str, Record] = {"hold": {"held_from": 1.0}, "open1": {"open_at": 2.0}}
    del results[missing]
    assert measures(plan, results)["gap"] is None


def test_a_step_that_was_already_so_measured_nothing() -> None:
    plan = plan_of(step("hold", "hold"), step("ready", "await_ready", engine="e", ranks=[]), step("open1", "open"))
    told = measures(plan, {"hold": {}, "ready": {}, "open1": {}})
    assert (told["gap"], told["loads"]) == (None, {})


def test_this_process_is_not_gone() -> None:
    assert not is_gone(myself())


def test_a_process_of_this_machine_that_ended_is_gone() -> None:
    place = myself().rpartition(" ")[0]
    process = subprocess.Popen(["sleep", "60"])
    started = f"/proc/{process.pid}/stat"
    with open(started) as source:
        owner = f"{place} {process.pid}@{source.read().rsplit(')', 1)[1].split()[19]}"
    assert not is_gone(owner)
    process.kill()
    process.wait()
    assert is_gone(owner)


def test_a_process_id_that_another_process_has_now_is_gone() -> None:
    place = myself().rpartition(" ")[0]
    assert is_gone(f"{place} {os.getpid()}@1")


@pytest.mark.parametrize(
    "owner", ["", "nonsense", "11111111-2222-3333-4444-555555555555 pid:[4026531836] 999999@1", "a b c@d"]
)
def test_of_a_process_elsewhere_it_is_not_known_that_it_is_gone(owner: str) -> None:
    assert not is_gone(owner)
