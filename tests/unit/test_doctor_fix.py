"""What `doctor --fix` would do, as a plan: each repair once, what cannot be taken back last, and the way back."""

from __future__ import annotations

import json

import pytest
from examined import scene

from fleetctl.cli.doctor import _show
from fleetctl.doctor.finding import Command, Ending, Finding, Remedy
from fleetctl.doctor.units.kinds import OTHER_AT_BOOT
from fleetctl.plan.types import Plan
from fleetctl.run.mending import mending, remediable, ways_back
from fleetctl.run.planning import Look

OFF: Command = ("systemctl", "disable", "--now", "old watch.timer")
ON: Command = ("systemctl", "enable", "old watch.timer")


def finding(box: str, where: str, remedy: Remedy | None) -> Finding:
    return OTHER_AT_BOOT.found(box, where, "it is so", fix="do it", remedy=remedy)


def ends(pid: int) -> Remedy:
    return Remedy((), (), (Ending(pid, 1, "split/qwen@0"),))


FOUND = [
    finding("a", "left", ends(7)),
    finding("a", "x", Remedy((("systemctl", "disable", "x"),), (("systemctl", "enable", "x"),))),
    finding("b", "y", Remedy((OFF,), (ON,))),
    finding("b", "y again", Remedy((OFF,), (ON,))),
    finding("b", "for a person", None),
    finding("a", "z", Remedy((("systemctl", "enable", "z"),), (("systemctl", "disable", "z"),))),
]


def plan(found: list[Finding]) -> Plan:
    seen = scene()
    return mending("office", "a", Look({}, seen.observed), found)


def test_each_repair_is_done_once_and_only_on_the_boxes_that_were_asked_for() -> None:
    assert [f.where for f in remediable(FOUND, [])] == ["left", "x", "y", "z"]
    assert [f.where for f in remediable(FOUND, ["b"])] == ["y"]
    assert plan([]).nothing_to_do()


def test_repairs_of_a_box_follow_each_other_and_what_cannot_be_taken_back_comes_after_all() -> None:
    made = plan(remediable(FOUND, []))
    assert [(step.target, step.after) for step in made.steps] == [
        ("x", ()),
        ("y", ()),
        ("z", ("mend.mend.a.1",)),
        ("left", ("mend.mend.a.2", "mend.mend.b.1")),
    ]
    assert (made.operation, made.from_layout, made.to_layout, made.generation) == ("doctor", "replicas", "replicas", 1)


def test_every_command_is_shown_as_it_could_be_typed_with_the_one_that_takes_it_back() -> None:
    made = plan(remediable(FOUND, ["b"]))
    assert made.steps[0].summary == (
        "U02 on b: systemctl disable --now 'old watch.timer'   (back: systemctl enable 'old watch.timer')"
    )
    assert ways_back(plan(remediable(FOUND, []))) == [
        "a: nothing (left has ended)",
        "a: systemctl disable z",
        "b: systemctl enable 'old watch.timer'",
        "a: systemctl enable x",
    ]


def test_a_plan_of_repairs_comes_back_from_the_journal_as_it_was() -> None:
    made = plan(remediable(FOUND, []))
    assert Plan.model_validate(json.loads(made.model_dump_json())) == made


def test_what_was_said_before_a_fix_is_a_line_afterwards_and_not_all_of_it_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for again, lines in ((False, 3), (True, 1)):
        _show(finding("a", "x", None), again=again)
        assert len(capsys.readouterr().out.splitlines()) == lines
