"""``fleetctl status``."""

from __future__ import annotations

from typing import Annotated

import typer

from fleetctl.cli.options import DEFAULT_FLEET, AcceptNew, Debug, FleetFile, Json, SshConfig, Via


def status(
    every: Annotated[
        bool, typer.Option("--all", help="List what is not right because a move was cut off, one by one.")
    ] = False,
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Show the fleet on one screen: layout, engines, memory, traffic, what is wrong, what was last changed.

    Exit status 3 when a box cannot be reached or used, 4 while a move is under way, 8 when one was cut off, 9 when
    something else is wrong.
    """
    from fleetctl.cli.output import console, emit
    from fleetctl.cli.session import QUICK, open_fleet
    from fleetctl.errors import BoxError, LockedError, UnfinishedError, UnhealthyError
    from fleetctl.run.overview import overview

    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config, via=via, partly=True, reach=QUICK) as subject:
        seen = overview(subject)
    found = seen.found
    if json:
        emit("status", **seen.as_json())
    else:
        from fleetctl.cli.show_status import show_status  # with the tables of rich, which JSON does without

        show_status(seen, console(), every=every)
    if found.unreachable:
        raise typer.Exit(BoxError.exit_code)
    if found.under_way():
        raise typer.Exit(LockedError.exit_code)
    if found.unfinished is not None:
        raise typer.Exit(UnfinishedError.exit_code)
    if not found.healthy():
        raise typer.Exit(UnhealthyError.exit_code)
