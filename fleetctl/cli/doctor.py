"""``fleetctl doctor`` and ``fleetctl explain``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fleetctl.cli import completing
from fleetctl.cli.options import DEFAULT_FLEET, AcceptNew, Debug, FleetFile, Json, SshConfig, TakeOver, Via, Yes

if TYPE_CHECKING:
    from fleetctl.doctor.finding import Finding
    from fleetctl.doctor.scene import Scene
    from fleetctl.errors import FleetError
    from fleetctl.plan.types import Plan
    from fleetctl.remote.boxes import Boxes
    from fleetctl.run.planning import Look, Subject

_SILENT = 5.0  # seconds between two words of progress of a box
_COLOURS = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def doctor(
    boxes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[BOX]…", help="Boxes to look at; default: all.", autocompletion=completing.boxes),
    ] = None,
    checksums: Annotated[
        bool, typer.Option("--checksums", help="Compare every byte of the models' files too: takes minutes.")
    ] = False,
    fleet: FleetFile = DEFAULT_FLEET,
    fix: Annotated[
        bool, typer.Option("--fix", help="Mend what is safe to mend. Every command is shown first, and what undoes it.")
    ] = False,
    yes: Yes = False,
    take_over: TakeOver = False,
    via: Via = None,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Find what would hurt before it does, and say how to mend it. Nothing is changed without --fix.

    Exit status 0 when there are at most notes, 3 when a box cannot be looked at, 9 when there is a warning or an error;
    with --fix of what is left after it.
    """
    from fleetctl.cli.session import QUICK, open_fleet
    from fleetctl.errors import BoxError, SpecError, UnhealthyError

    with open_fleet(
        fleet, accept_new=accept_new, ssh_config=ssh_config, via=via, partly=not fix, reach=QUICK, full=fix
    ) as subject:
        if unknown := sorted(set(boxes or ()) - set(subject.fleet.boxes)):
            raise SpecError(
                f"no box {', '.join(unknown)} in the fleet", hint=f"boxes: {', '.join(subject.fleet.boxes)}"
            )
        told = _look(subject, boxes or [], checksums=checksums, as_json=json)
        _tell(told, as_json=json)
        if fix and _mend(subject, told, boxes or [], as_json=json, yes=yes, take_over=take_over):
            before, told = told, _look(subject, boxes or [], checksums=checksums, as_json=json)
            _tell(told, as_json=json, before=before)
    if told.unseen:
        raise typer.Exit(BoxError.exit_code)
    if told.counts["error"] or told.counts["warning"]:
        raise typer.Exit(UnhealthyError.exit_code)


@dataclass(frozen=True)
class _Told:
    """What one look found, and why it could not see all."""

    scene: Scene
    boxes: list[str]
    found: list[Finding]
    unseen: list[FleetError]

    @property
    def counts(self) -> dict[str, int]:
        from fleetctl.doctor.finding import Severity

        return {severity.value: sum(f.severity is severity for f in self.found) for severity in Severity}


def _look(subject: Subject, boxes: list[str], *, checksums: bool, as_json: bool) -> _Told:
    from fleetctl.doctor.examine import examine
    from fleetctl.doctor.families import FAMILIES
    from fleetctl.doctor.finding import by_weight
    from fleetctl.run.examining import scene_of

    scene = scene_of(subject)
    found, failed = examine(subject.boxes, scene, FAMILIES)
    if checksums:
        more, unread = _checksums(subject.boxes, scene, found, json=as_json)
        found, failed = by_weight([*found, *more], scene.fleet.boxes), [*failed, *unread]
    if boxes:
        found = [finding for finding in found if finding.box is None or finding.box in boxes]
    return _Told(scene, boxes or list(scene.fleet.boxes), found, [*scene.away.values(), *failed])


def _tell(told: _Told, *, as_json: bool, before: _Told | None = None) -> None:
    """What was found. ``before``: it is what is left after a fix, and what was shown then is a line of its own only."""
    from dataclasses import asdict

    from fleetctl.cli.output import console, emit
    from fleetctl.doctor.settled import under_way
    from fleetctl.facts.operations import with_article

    move = under_way(told.scene)
    after_fix = before is not None
    if as_json:
        for finding in told.found:
            emit("finding", **asdict(finding), after_fix=after_fix)
        unseen = [error.message for error in told.unseen]
        moving = move and f"{move.operation} by {move.who}"
        emit("summary", boxes=told.boxes, not_seen=unseen, under_way=moving, **told.counts, after_fix=after_fix)
        return
    out = console()
    if after_fix:
        out.print("\n[bold]what is left[/]")
    shown = {(finding.code, finding.box, finding.where) for finding in before.found} if before else set()
    for finding in told.found:
        _show(finding, again=(finding.code, finding.box, finding.where) in shown)
    for error in told.unseen:
        out.print(f"not looked at: {error.message}", markup=False)
    if move is not None:
        told_of = f"{with_article(move.operation)} by {move.who}"
        out.print(f"{told_of} is under way: what it changes is not judged now", markup=False)
    counted = ", ".join(f"{number} {word}{'' if number == 1 else 's'}" for word, number in told.counts.items())
    nothing = "nothing was found in what was looked at" if told.unseen else "nothing was found"
    out.print(counted if told.found else nothing, markup=False)


def _mend(subject: Subject, told: _Told, boxes: list[str], *, as_json: bool, yes: bool, take_over: bool) -> bool:
    """Carry out the remedies of what was found. False when there were none.

    A repair that was cut off is finished first. Raises LockedError and UnfinishedError for any other change that is
    under way or was cut off.
    """
    from fleetctl.cli.mover import Mover
    from fleetctl.cli.output import console, emit
    from fleetctl.facts.types import unfinished
    from fleetctl.run.mending import plan_mending, remediable, ways_back
    from fleetctl.run.planning import refuse_unfinished

    cut_off = unfinished(told.scene.observed)
    if cut_off is not None and cut_off[1].operation != "doctor":
        refuse_unfinished(told.scene.observed)
    if cut_off is None and not remediable(told.found, boxes):
        if not as_json:
            console().print("nothing of it is mended by --fix: what each needs is said above" if told.found else "")
        return False
    plans: list[Plan] = []

    def make(seen: Look) -> Plan:
        plans.append(plan_mending(subject, seen, boxes))
        return plans[-1]

    end = Mover(subject, as_json=as_json, yes=yes, take_over=take_over).work("doctor", make)
    if end is not None:
        back = ways_back(plans[-1])
        if as_json:
            emit("taken_back_by", commands=back)
        else:
            console().print("[bold]what takes it back[/]")
            for line in back:
                console().print(f"  {line}", markup=False)
    return True


def _checksums(
    boxes: Boxes, scene: Scene, found: list[Finding], *, json: bool
) -> tuple[list[Finding], list[FleetError]]:
    """Findings from checksums of the models, with a word of progress now and then."""
    import time

    from fleetctl.cli.output import console, emit
    from fleetctl.doctor.box.checksums import checksums, found_by
    from fleetctl.spec.units import gib

    told: dict[str, float] = {}

    def hear(box: str, event: dict[str, Any]) -> None:
        if json:
            emit("progress", box=box, **event)
        elif time.monotonic() - told.get(box, 0.0) > _SILENT:
            told[box] = time.monotonic()
            words = f"{box}: {gib(event['bytes'])} of {gib(event['total'])} read, {event['path']}"
            console().print(words, markup=False, highlight=False)

    sums, failed = checksums(boxes, scene, hear)
    return found_by(scene, sums, found), failed


def _show(finding: Finding, *, again: bool = False) -> None:
    """A finding with all that is to be said; ``again``: it was said above, and its name is enough."""
    from rich.text import Text

    from fleetctl.cli.output import console

    out = console()
    line = Text(f"{finding.severity.value} {finding.code}", style=_COLOURS[finding.severity.value])
    box = f"{finding.box}: " if finding.box else ""
    out.print(line.append(f"  {box}{finding.says}", style="default"))
    if again:
        return
    for evidence in finding.evidence:
        out.print(Text(f"    seen:  {evidence}"))
    out.print(Text(f"    why:   {finding.why}"))
    out.print(Text(f"    fix:   {finding.fix}", style="bold"))
    if finding.remedy is not None:
        out.print(Text("    --fix does that", style="dim"))


def explain(
    code: Annotated[
        str, typer.Argument(metavar="CODE", help="The code of a finding, such as U01.", autocompletion=completing.codes)
    ],
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Say what a finding of doctor or `proxy lint` means, why it matters and what to do."""
    from dataclasses import asdict

    from fleetctl.cli.output import console, emit
    from fleetctl.doctor.explain import explained

    kind = explained(code)
    if json:
        emit("kind", **asdict(kind))
        return
    out = console()
    out.print(f"{kind.code} {kind.title} ({kind.severity.value})", markup=False)
    for name, text in (
        ("looks for", kind.looks_for),
        ("why", kind.why),
        ("fix", kind.fix),
        ("source", kind.source),
    ):
        out.print(f"  {name}: {text}", markup=False)
