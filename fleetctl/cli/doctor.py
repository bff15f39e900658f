"""``fleetctl doctor`` and ``fleetctl explain``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fleetctl.cli.options import DEFAULT_FLEET, AcceptNew, Debug, FleetFile, Json, SshConfig, Via

if TYPE_CHECKING:
    from fleetctl.doctor.finding import Finding
    from fleetctl.doctor.scene import Scene
    from fleetctl.errors import FleetError
    from fleetctl.remote.boxes import Boxes

_SILENT = 5.0  # seconds between two words of progress of a box
_COLOURS = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def doctor(
    boxes: Annotated[list[str] | None, typer.Argument(metavar="[BOX]…", help="Boxes to look at; default: all.")] = None,
    checksums: Annotated[
        bool, typer.Option("--checksums", help="Compare every byte of the models' files too: takes minutes.")
    ] = False,
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Find what would hurt before it does, and say how to mend it. Nothing is changed.

    Exit status 0 when there are at most notes, 3 when a box cannot be looked at, 9 when there is a warning or an error.
    """
    from dataclasses import asdict

    from fleetctl.cli.output import console, emit
    from fleetctl.cli.session import open_fleet
    from fleetctl.doctor.examine import examine
    from fleetctl.doctor.families import FAMILIES
    from fleetctl.doctor.finding import Severity, by_weight
    from fleetctl.errors import BoxError, SpecError, UnhealthyError
    from fleetctl.run.examining import scene_of

    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config, via=via, partly=True) as subject:
        if unknown := sorted(set(boxes or ()) - set(subject.fleet.boxes)):
            raise SpecError(
                f"no box {', '.join(unknown)} in the fleet", hint=f"boxes: {', '.join(subject.fleet.boxes)}"
            )
        scene = scene_of(subject)
        found, failed = examine(subject.boxes, scene, FAMILIES)
        if checksums:
            more, unread = _checksums(subject.boxes, scene, found, json=json)
            found, failed = by_weight([*found, *more], scene.fleet.boxes), [*failed, *unread]
    if boxes:
        found = [finding for finding in found if finding.box is None or finding.box in boxes]
    counts = {severity.value: sum(f.severity is severity for f in found) for severity in Severity}
    unseen = [*scene.away.values(), *failed]
    if json:
        for finding in found:
            emit("finding", **asdict(finding))
        emit("summary", boxes=list(boxes or scene.fleet.boxes), not_seen=[e.message for e in unseen], **counts)
    else:
        out = console()
        for finding in found:
            _show(finding)
        for error in unseen:
            out.print(f"not looked at: {error.message}", markup=False)
        told = ", ".join(f"{number} {word}{'' if number == 1 else 's'}" for word, number in counts.items())
        out.print(told if found else "nothing was found", markup=False)
    if unseen:
        raise typer.Exit(BoxError.exit_code)
    if counts["error"] or counts["warning"]:
        raise typer.Exit(UnhealthyError.exit_code)


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


def _show(finding: Finding) -> None:
    from rich.text import Text

    from fleetctl.cli.output import console

    out = console()
    line = Text(f"{finding.severity.value} {finding.code}", style=_COLOURS[finding.severity.value])
    box = f"{finding.box}: " if finding.box else ""
    out.print(line.append(f"  {box}{finding.says}", style="default"))
    for evidence in finding.evidence:
        out.print(Text(f"    seen:  {evidence}"))
    out.print(Text(f"    why:   {finding.why}"))
    out.print(Text(f"    fix:   {finding.fix}", style="bold"))


def explain(
    code: Annotated[str, typer.Argument(metavar="CODE", help="The code of a finding, such as U01.")],
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
