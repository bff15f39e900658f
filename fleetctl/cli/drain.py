"""``fleetctl drain`` and ``fleetctl undrain``: a box out of the proxy, and back."""

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

BoxName = Annotated[str, typer.Argument(metavar="BOX", help="A box of the fleet.", autocompletion=completing.boxes)]


def drain(
    box: BoxName,
    fleet: FleetFile = DEFAULT_FLEET,
    limit: Annotated[
        str | None, typer.Option("--limit", help="Longest wait for running requests, such as 5m; default: proxy.drain.")
    ] = None,
    hold: Annotated[
        bool, typer.Option("--hold", help="Also when a model is left without a copy: its requests wait in the proxy.")
    ] = False,
    yes: Yes = False,
    take_over: TakeOver = False,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Take a box out of the proxy, and of a pool, so that somebody can work on it; running requests finish.

    Exit status 9 when requests still run on it after the limit: it is drained, and they go on.
    """
    from fleetctl.cli.mover import Mover
    from fleetctl.cli.session import open_fleet, playbooks
    from fleetctl.errors import SpecError, UnhealthyError
    from fleetctl.run.rolling import plan_drain
    from fleetctl.spec.units import parse_duration

    try:
        most = None if limit is None else parse_duration(limit)
    except ValueError as error:
        raise SpecError(f"--limit: {error}") from error
    book = playbooks()("drain")
    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config) as subject:
        mover = Mover(subject, as_json=json, yes=yes, take_over=take_over)
        end = mover.work("drain", lambda seen: plan_drain(subject, seen, book, box, limit=most, hold=hold))
    if end is not None and end["cut"]:
        raise UnhealthyError(
            f"{box} is drained, but {end['cut']} requests still run on it",
            hint="they go on until they end, unless its engines are stopped",
        )


def undrain(
    box: BoxName,
    fleet: FleetFile = DEFAULT_FLEET,
    yes: Yes = False,
    take_over: TakeOver = False,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Put a drained box back: its engines pass their gates, then they take requests, as does its worker of a pool."""
    from fleetctl.cli.mover import Mover
    from fleetctl.cli.session import open_fleet, playbooks
    from fleetctl.run.rolling import plan_undrain

    book = playbooks()("undrain")
    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config) as subject:
        mover = Mover(subject, as_json=json, yes=yes, take_over=take_over)
        mover.work("undrain", lambda seen: plan_undrain(subject, seen, book, box))
