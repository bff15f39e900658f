"""``fleetctl cutover``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fleetctl.cli import completing
from fleetctl.cli.options import (
    DEFAULT_FLEET,
    AcceptNew,
    Debug,
    FleetFile,
    Json,
    PlaybookFile,
    SshConfig,
    TakeOver,
    Yes,
)


def cutover(
    to: Annotated[
        str | None, typer.Option("--to", metavar="LAYOUT", help="Layout to move to.", autocompletion=completing.layouts)
    ] = None,
    fleet: FleetFile = DEFAULT_FLEET,
    plan: Annotated[Path | None, typer.Option("--plan", help="Execute a plan saved by `fleetctl plan --out`.")] = None,
    playbook: PlaybookFile = None,
    yes: Yes = False,
    take_over: TakeOver = False,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Move the fleet to a layout, in stages; everything is undone when a gate fails."""
    from fleetctl.cli.mover import Mover
    from fleetctl.cli.session import open_fleet, playbooks
    from fleetctl.errors import SpecError

    if to is not None and plan is not None:
        raise SpecError("either --to LAYOUT or --plan FILE, not both: a plan says where it goes")
    if to is None and plan is None:
        raise SpecError("say where to: --to LAYOUT, or --plan FILE for a saved plan")
    books = playbooks(playbook)
    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config) as subject:
        mover = Mover(subject, as_json=json, yes=yes, take_over=take_over)
        if plan is not None:
            mover.execute_saved(plan)
        elif to is not None:
            mover.cutover(to, books)
