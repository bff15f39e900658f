"""``fleetctl clients``: who talks to engines directly, round the proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fleetctl.cli.options import DEFAULT_FLEET, AcceptNew, Debug, FleetFile, Json, SshConfig, Via

if TYPE_CHECKING:
    from fleetctl.run.direct import Direct, Searched

LOOK = 3.0  # seconds of a look without --watch


def clients(
    seconds: Annotated[
        str | None, typer.Argument(metavar="SECONDS", help="With --watch: for how long; 60, 15m or 2h.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on looking, until Ctrl-C or for SECONDS.")] = False,
    search: Annotated[
        list[str] | None,
        typer.Option(
            "--search",
            metavar="[BOX:]DIR",
            help="Search a folder, here or on a box, for addresses of engines instead; can be repeated.",
        ),
    ] = None,
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Say who talks to engines at their own ports instead of the proxy's, and what the firewall refused.

    Exit status 0 when nobody does, 9 when somebody does or a folder names an engine, 3 when a box cannot be looked at.
    """
    from fleetctl.errors import SpecError

    if seconds is not None and not watch:
        raise SpecError("SECONDS says how long to watch", hint=f"fleetctl clients --watch {seconds}")
    if search and watch:
        raise SpecError("--search looks into files and --watch at connections: one at a time")
    ways: dict[str, Any] = {"accept_new": accept_new, "ssh_config": ssh_config, "via": via}
    if search:
        _search(fleet, search, json=json, **ways)
    else:
        _look(fleet, _period(seconds), watch=watch, json=json, **ways)


def _period(text: str | None) -> float | None:
    """Seconds; None: without an end. Raises SpecError for what is no time of a second or more."""
    from fleetctl.errors import SpecError
    from fleetctl.spec.units import parse_duration

    if text is None:
        return None
    try:
        period = parse_duration(text)
    except ValueError as error:
        raise SpecError(f"--watch {text} is no stretch of time: {error}") from error
    if period < 1:
        raise SpecError(f"--watch {text} is too short to see anything", hint="a second or more; without it: to Ctrl-C")
    return period


def _look(fleet: FleetFile, seconds: float | None, *, watch: bool, json: bool, **ways: Any) -> None:
    from fleetctl.cli.session import open_fleet
    from fleetctl.cli.show_clients import show_clients, tell
    from fleetctl.doctor.clients import matters
    from fleetctl.errors import BoxError, UnhealthyError
    from fleetctl.run.direct import Direct

    with open_fleet(fleet, partly=True, **ways) as subject:
        direct = Direct(subject)
        found = direct.look(1.0 if watch else LOOK)
        if watch:
            _watch(direct, seconds, json=json)
            found = direct.watched()
    if json:
        tell(direct, found)
    elif not watch:
        show_clients(direct, found)
    if direct.away:
        raise typer.Exit(BoxError.exit_code)
    if any(matters(client) for client in found):
        raise typer.Exit(UnhealthyError.exit_code)


def _watch(direct: Direct, seconds: float | None, *, json: bool) -> None:
    """Until the time is over or Ctrl-C."""
    from contextlib import closing

    from fleetctl.cli.output import emit
    from fleetctl.cli.show_clients import Table, event

    table = None if json else Table(direct)
    try:
        with closing(direct.watch(seconds)) as standings:
            for standing in standings:
                if table is not None:
                    table.show(standing)
                else:
                    for client in standing.changed:
                        emit("client", at=standing.at, **event(client))
    except KeyboardInterrupt:
        pass  # it is how a watch without an end is ended
    finally:
        if table is not None:
            table.end()


def _search(fleet: FleetFile, wanted: list[str], *, json: bool, via: str | None, **ways: Any) -> None:
    from fleetctl.cli.output import emit
    from fleetctl.cli.session import open_fleet
    from fleetctl.cli.show_clients import show_searched
    from fleetctl.errors import UnhealthyError
    from fleetctl.run.direct import places, search_here, search_on
    from fleetctl.spec.load import load_fleet

    if via is None:
        spec = load_fleet(fleet).fleet
        asked = places(spec, wanted)
    if via is not None or any(box is not None for box, _ in asked):
        with open_fleet(fleet, via=via, partly=True, full=True, **ways) as subject:
            spec = subject.fleet
            asked = places(spec, wanted)
            for box in {box for box, _ in asked if box in subject.unreachable}:
                raise subject.unreachable[box or ""]
            searched = [
                search_here(spec, path) if box is None else search_on(spec, subject.boxes, box, path)
                for box, path in asked
            ]
    else:
        searched = [search_here(spec, path) for _, path in asked]
    if json:
        for one in searched:
            for setting in one.found:
                emit("setting", box=one.box, **setting.model_dump())
        emit("searched", places=[_summary(one) for one in searched])
    else:
        show_searched(spec, searched)
    if any(one.found for one in searched):
        raise typer.Exit(UnhealthyError.exit_code)


def _summary(one: Searched) -> dict[str, Any]:
    return {"box": one.box, "path": one.path, "files": one.files, "found": len(one.found), "why": one.why}
