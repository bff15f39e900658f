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

    Exit status 3 when a box cannot be reached or used, 4 while a move is under way, 8 when one was cut off, 9 when
    something else is wrong.
    """
    from dataclasses import asdict

    import typer

    from fleetctl.cli.output import console, emit
    from fleetctl.cli.session import open_fleet
    from fleetctl.cli.show_status import show_status
    from fleetctl.errors import BoxError, LockedError, UnfinishedError, UnhealthyError
    from fleetctl.facts.assess import assess
    from fleetctl.facts.gather import gather_some, questions
    from fleetctl.remote.errors import SeveralBoxesError
    from fleetctl.run.owner import is_gone

    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config, via=via, partly=True) as subject:
        observed, failed = gather_some(subject.boxes, questions(subject.fleet))
        away = {**subject.unreachable, **failed}
        if not observed:
            raise SeveralBoxesError(away)
        for name, facts in observed.items():
            if facts.lock is not None and is_gone(facts.lock.owner):  # a process of this machine that has ended
                lock = facts.lock.model_copy(update={"connected": False})
                observed[name] = facts.model_copy(update={"lock": lock})
        found = assess(observed, subject.fleet.proxy.lead, subject.fleet.fleet, away)
    if json:
        plain = {
            key: value.model_dump() if hasattr(value, "model_dump") else value for key, value in asdict(found).items()
        }
        emit("status", healthy=found.healthy(), **plain)
    else:
        show_status(found, console())
    if found.unreachable:
        raise typer.Exit(BoxError.exit_code)
    if found.under_way():
        raise typer.Exit(LockedError.exit_code)
    if found.unfinished is not None:
        raise typer.Exit(UnfinishedError.exit_code)
    if not found.healthy():
        raise typer.Exit(UnhealthyError.exit_code)
