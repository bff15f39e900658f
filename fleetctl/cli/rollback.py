"""``fleetctl rollback``."""

from __future__ import annotations

from typing import Annotated

import typer

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


def rollback(
    to: Annotated[
        int | None, typer.Option("--to", help="Generation to go back to; default: the one before the current.")
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take back a move that was cut off, whatever it was.")] = False,
    fleet: FleetFile = DEFAULT_FLEET,
    playbook: PlaybookFile = None,
    yes: Yes = False,
    take_over: TakeOver = False,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Bring back the layout before this one, with the files and enablement the boxes kept."""
    from fleetctl.cli.mover import Mover
    from fleetctl.cli.session import load_playbook, open_fleet

    book = load_playbook(playbook, "rollback")
    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config) as subject:
        Mover(subject, as_json=json, yes=yes, take_over=take_over).rollback(to, book, undo=undo)
