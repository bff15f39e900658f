"""``fleetctl plan``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fleetctl.cli.options import DEFAULT_FLEET, AcceptNew, Debug, FleetFile, Json, PlaybookFile, SshConfig


def plan(
    to: Annotated[
        str | None, typer.Option("--to", help="Layout to move to; default: the live one, as it is now.")
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
    """Show what a cutover would do: stages, steps, files, memory, and the gap. Nothing is changed."""
    from fleetctl.cli.output import console, emit
    from fleetctl.cli.session import load_playbook, open_fleet
    from fleetctl.cli.show_plan import show_plan
    from fleetctl.errors import RefusedError
    from fleetctl.run.planning import live_layout, look, plan_cutover, refuse_unfinished, wanted_release

    book = load_playbook(playbook, "cutover")
    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config) as subject:
        layout = to or live_layout(look(subject).observed)
        if layout is None:
            raise RefusedError("no layout is live yet", hint=f"name one: --to {' | '.join(subject.fleet.layouts)}")
        wanted = wanted_release(subject, layout)
        seen = look(subject, (wanted,))
        refuse_unfinished(seen.observed)
        made = plan_cutover(subject, wanted, seen, book)
    if out is not None:
        out.write_text(made.model_dump_json(indent=1) + "\n")
    if json:
        emit("plan", plan=made.model_dump(mode="json"))
    else:
        show_plan(made, console(), diffs=diff)
