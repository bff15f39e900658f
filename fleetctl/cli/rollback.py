"""``fleetctl rollback``."""

from __future__ import annotations

from contextlib import ExitStack
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
    Via,
    Yes,
)


def rollback(
    to: Annotated[
        int | None,
        typer.Option(
            "--to",
            min=0,
            help="Generation to go back to (fleetctl history has them); 0: before fleetctl. Default: the one before.",
        ),
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take back a move that was cut off, whatever it was.")] = False,
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    playbook: PlaybookFile = None,
    yes: Yes = False,
    take_over: TakeOver = False,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Bring back the layout before this one, with the files and enablement the boxes kept.

    `fleetctl history` shows which generations there are to go back to.
    """
    from fleetctl.cli.mover import Mover
    from fleetctl.cli.session import open_fleet, playbooks
    from fleetctl.errors import SpecError

    books = playbooks(playbook)
    with ExitStack() as stack:
        try:
            subject = stack.enter_context(open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config, via=via))
        except SpecError as error:
            other = "a rollback needs no fleet.yaml here: --via [USER@]HOST uses the one that a box of the fleet keeps"
            raise SpecError(error.message, hint="\n".join(filter(None, [error.hint, other]))) from error
        Mover(subject, as_json=json, yes=yes, take_over=take_over).rollback(to, books, undo=undo)
