"""``fleetctl status``."""

from __future__ import annotations

from fleetctl.cli.options import DEFAULT_FLEET, AcceptNew, Debug, FleetFile, Json, SshConfig, Via


def status(
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Say which layout is live and what is wrong with it.

    Exit status 3 when a box cannot be reached, 8 when a move was cut off, 9 when something else is wrong.
    """
    from dataclasses import asdict

    import typer

    from fleetctl.cli.output import console, emit
    from fleetctl.cli.session import open_fleet
    from fleetctl.cli.show_status import show_status
    from fleetctl.errors import BoxError, UnfinishedError, UnhealthyError
    from fleetctl.facts.assess import assess
    from fleetctl.facts.gather import gather_some, questions
    from fleetctl.remote.errors import SeveralBoxesError

    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config, via=via, partly=True) as subject:
        observed, failed = gather_some(subject.boxes, questions(subject.fleet))
        away = {**subject.unreachable, **failed}
        if not observed:
            raise SeveralBoxesError(away)
        found = assess(observed, subject.fleet.proxy.box, subject.fleet.fleet, away)
    if json:
        plain = {
            key: value.model_dump() if hasattr(value, "model_dump") else value for key, value in asdict(found).items()
        }
        emit("status", healthy=found.healthy(), **plain)
    else:
        show_status(found, console())
    if found.unreachable:
        raise typer.Exit(BoxError.exit_code)
    if found.unfinished is not None:
        raise typer.Exit(UnfinishedError.exit_code)
    if not found.healthy():
        raise typer.Exit(UnhealthyError.exit_code)
