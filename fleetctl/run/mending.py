"""The safe repairs of what doctor found, as a plan: it is shown, carried out and undone like any other change."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import asdict

from fleetctl.doctor.examine import examine
from fleetctl.doctor.families import FAMILIES
from fleetctl.doctor.finding import Finding, Remedy
from fleetctl.plan.types import Plan, PlannedStep, Stage
from fleetctl.run.examining import scene_of
from fleetctl.run.planning import Look, Subject
from fleetctl.run.staying import staying

STAGE = Stage(name="mend", summary="what is safe to repair, box by box")


def plan_mending(subject: Subject, seen: Look, boxes: Iterable[str]) -> Plan:
    """The plan of all remedies for what is found now, on these boxes (none: on all)."""
    found, _ = examine(subject.boxes, scene_of(subject), FAMILIES)
    return mending(subject.fleet.fleet, subject.fleet.proxy.lead, seen, remediable(found, boxes))


def remediable(found: Iterable[Finding], boxes: Iterable[str]) -> list[Finding]:
    """The findings that can be mended, one for each remedy."""
    chosen = set(boxes)
    mine: dict[tuple[object, ...], Finding] = {}
    for finding in found:
        if finding.remedy is not None and finding.box is not None and (not chosen or finding.box in chosen):
            mine.setdefault((finding.box, finding.remedy), finding)
    return list(mine.values())


def mending(fleet: str, wanted_lead: str, seen: Look, found: list[Finding]) -> Plan:
    """A plan with one step for each finding; those of one box follow each other. The layout stays what it is.

    What cannot be taken back comes last of all, when everything else has been done.
    """
    return staying(fleet, wanted_lead, seen, "doctor", (STAGE,), _steps(found))


def _steps(found: list[Finding]) -> tuple[PlannedStep, ...]:
    steps: list[PlannedStep] = []
    last: dict[str, str] = {}
    for final in (False, True):
        before = tuple(last.values())
        for finding in found:
            box, remedy = finding.box, finding.remedy
            assert box is not None and remedy is not None
            if bool(remedy.ends) is final:
                after = tuple(dict.fromkeys([*(before if final else ()), *([last[box]] if box in last else [])]))
                number = sum(step.box == box for step in steps) + 1
                steps.append(_step(finding, box, remedy, number, after))
                last[box] = steps[-1].id
    return tuple(steps)


def _step(finding: Finding, box: str, remedy: Remedy, number: int, after: tuple[str, ...]) -> PlannedStep:
    back = "; ".join(remedy.takes_back()) or "nothing"
    return PlannedStep(
        id=f"{STAGE.name}.mend.{box}.{number}",
        kind="mend",
        stage=STAGE.name,
        box=box,
        target=finding.where,
        params={
            "code": finding.code,
            "do": [list(words) for words in remedy.do],
            "undo": [list(words) for words in remedy.undo],
            "ends": [asdict(one) for one in remedy.ends],
        },
        summary=f"{finding.code} on {box}: {'; '.join(remedy.does())}   (back: {back})",
        after=after,
    )


def ways_back(plan: Plan) -> list[str]:
    """What takes the repairs back, last first, one line for each step."""
    lines = []
    for step in reversed(plan.steps):
        commands = [shlex.join(words) for words in step.params["undo"]]
        lines.append(
            f"{step.box}: {'; '.join(commands)}" if commands else f"{step.box}: nothing ({step.target} has ended)"
        )
    return lines
