"""``fleetctl plan``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fleetctl.cli import completing
from fleetctl.cli.options import DEFAULT_FLEET, AcceptNew, Debug, FleetFile, Json, PlaybookFile, SshConfig


def plan(
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="LAYOUT",
            help="Layout to move to; default: the live one, as it is now.",
            autocompletion=completing.layouts,
        ),
    ] = None,
    fleet: FleetFile = DEFAULT_FLEET,
    playbook: PlaybookFile = None,
    out: Annotated[Path | None, typer.Option("--out", help="Save the plan, to be executed by cutover --plan.")] = None,
    diff: Annotated[bool, typer.Option("--diff/--no-diff", help="Show how files change.")] = True,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Show what a cutover (without --to: apply) would do: stages, files, memory, the gap. Nothing is changed."""
    from fleetctl.cli.output import console, emit
    from fleetctl.cli.session import open_fleet, playbooks
    from fleetctl.cli.show_plan import show_plan
    from fleetctl.run.fill import Filler
    from fleetctl.run.planning import look, plan_cutover, refuse_unfinished, wanted_release
    from fleetctl.run.rolling import layout_to_apply, plan_apply

    books = playbooks(playbook)
    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config) as subject:
        layout = to or layout_to_apply(subject, look(subject).observed)
        wanted = wanted_release(subject, layout)
        seen = look(subject, (wanted,), Filler())
        refuse_unfinished(seen.observed)
        made = (plan_apply if to is None else plan_cutover)(subject, wanted, seen, books)
    if out is not None:
        out.write_text(made.model_dump_json(indent=1) + "\n")
        console(error=True).print(f"saved; carry it out with: fleetctl cutover --plan {out}", markup=False)
    if json:
        emit("plan", plan=made.model_dump(mode="json"))
    else:
        show_plan(made, console(), diffs=diff)
