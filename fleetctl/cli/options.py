"""Options that several commands share, spelt the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

FleetFile = Annotated[
    Path, typer.Option("--fleet", "-f", envvar="FLEETCTL_FLEET", help="The fleet's file.", show_default=True)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON event a line.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.")]
AcceptNew = Annotated[
    bool, typer.Option("--accept-new-host-keys", help="Accept the SSH keys of hosts that are not known yet, once.")
]
SshConfig = Annotated[
    Path | None, typer.Option("--ssh-config", "-F", help="OpenSSH configuration in place of the user's.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before changing anything.")]
TakeOver = Annotated[bool, typer.Option("--take-over", help="Take over the lock of a command that is gone.")]
Via = Annotated[
    str | None,
    typer.Option("--via", metavar="[USER@]HOST", help="Use the fleet.yaml that this box keeps; none is needed here."),
]
PlaybookFile = Annotated[Path | None, typer.Option("--playbook", help="A changed copy of the playbook to run.")]
Profiles = Annotated[
    Path | None,
    typer.Option("--profiles", metavar="DIR", help="Your own profiles, which come before those that ship."),
]

DEFAULT_FLEET = Path("fleet.yaml")
