"""``fleetctl restart``."""

from __future__ import annotations

from typing import Annotated

import typer

from fleetctl.cli import completing
from fleetctl.cli.options import (
    DEFAULT_FLEET,
    AcceptNew,
    Debug,
    FleetFile,
    Json,
    SshConfig,
    TakeOver,
    Yes,
)


def restart(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[BOX|MODEL]",
            help="Engines of a box or model; default: all of the layout.",
            autocompletion=completing.subjects,
        ),
    ] = None,
    fleet: FleetFile = DEFAULT_FLEET,
    yes: Yes = False,
    take_over: TakeOver = False,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Start engines of the live layout anew, one copy at a time, each drained before and proved after.

    A split restarts as a whole, with requests held; of a pool only what is loaded. Settings that changed in fleet.yaml
    are the matter of apply.
    """
    from fleetctl.cli.mover import Mover
    from fleetctl.cli.session import open_fleet, playbooks
    from fleetctl.run.rolling import plan_restart

    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config) as subject:
        mover = Mover(subject, as_json=json, yes=yes, take_over=take_over)
        mover.work(
            "restart",
            lambda seen: plan_restart(subject, seen, playbooks(), name),
            finishes=name is None,
        )
