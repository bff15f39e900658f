"""``fleetctl status``."""

from __future__ import annotations

from fleetctl.cli.options import DEFAULT_FLEET, AcceptNew, Debug, FleetFile, Json, SshConfig


def status(
    fleet: FleetFile = DEFAULT_FLEET,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Say which layout is live and what is wrong with it. Exit status 9 when something is."""
    from dataclasses import asdict

    import typer

    from fleetctl.cli.output import console, emit
    from fleetctl.cli.session import open_fleet
    from fleetctl.cli.show_status import show_status
    from fleetctl.errors import UnfinishedError, UnhealthyError
    from fleetctl.facts.assess import assess
    from fleetctl.run.planning import look

    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config) as subject:
        found = assess(look(subject), subject.fleet.proxy.box, subject.fleet.fleet)
    if json:
        plain = {
            key: value.model_dump() if hasattr(value, "model_dump") else value for key, value in asdict(found).items()
        }
        emit("status", healthy=found.healthy(), **plain)
    else:
        show_status(found, console())
    if found.unfinished is not None:
        raise typer.Exit(UnfinishedError.exit_code)
    if not found.healthy():
        raise typer.Exit(UnhealthyError.exit_code)
