"""``fleetctl logs``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fleetctl.cli import completing
from fleetctl.cli.options import DEFAULT_FLEET, AcceptNew, Debug, Json, SshConfig, Via

if TYPE_CHECKING:
    from fleetctl.watch.logs.stream import Wanted

# -f follows here, as it does in every other program that shows logs.
FleetFile = Annotated[Path, typer.Option("--fleet", envvar="FLEETCTL_FLEET", help="The fleet's file.")]
DEFAULT_LINES = 50
# What uvicorn says of a health check or a scrape that went well. There are several a second, and nothing is in them.
HEALTH_CHECKS = r'"(GET|HEAD) /(health|ping|metrics|v1/models)[^"]*" 200\b'


def logs(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[BOX|MODEL|ENGINE|UNIT]…",
            help="Whose logs; default: all engines of the live layout.",
            autocompletion=completing.subjects,
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written from now on.")] = False,
    lines: Annotated[
        int | None,
        typer.Option("--lines", "-n", min=0, help="The newest lines of each box; default: 50, with --since all."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Not older than this: '10 min ago', 14:30, '2026-11-30 14:30'.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="Not newer than this.")] = None,
    grep: Annotated[
        str | None,
        typer.Option("--grep", "-g", help="Lines that match a regular expression; one without capitals: any case."),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option("--all", "-a", help="Also proxy, keepalived, guard, replaced units, and answered health checks."),
    ] = False,
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Show what the engines log on all boxes, in order of time; with -f as it is written.

    Keys, tokens and passwords are left out, and so are health checks that went well. Times are by this machine's clock.
    Exit status 3 when a box cannot be read.
    """
    from fleetctl.cli.quietly import ended_quietly
    from fleetctl.cli.session import QUICK, open_fleet
    from fleetctl.cli.show_logs import show_logs
    from fleetctl.errors import BoxError
    from fleetctl.run.sources import log_sources
    from fleetctl.watch.logs.reading import Reading

    wanted = _wanted(follow, lines, since, until, grep, None if everything or grep else HEALTH_CHECKS)
    with (
        ended_quietly(),
        open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config, via=via, partly=True, reach=QUICK) as subject,
    ):
        sources = log_sources(subject, names or (), everything=everything)
        with Reading(sources, wanted, subject.boxes, subject.connect, subject.unreachable) as reading:
            show_logs(reading, sources, list(subject.fleet.boxes), as_json=json)
        missed = reading.errors()
    if missed:
        raise typer.Exit(BoxError.exit_code)


def _wanted(
    follow: bool, lines: int | None, since: str | None, until: str | None, grep: str | None, leave_out: str | None
) -> Wanted:
    """The options as values. Raises SpecError for one that is wrong."""
    import re
    import time

    from fleetctl.errors import SpecError
    from fleetctl.watch.logs.moment import parse_moment
    from fleetctl.watch.logs.stream import Wanted

    now = time.time()
    moments: dict[str, float | None] = {"--since": None, "--until": None}
    for option, text in (("--since", since), ("--until", until)):
        try:
            moments[option] = None if text is None else parse_moment(text, now)
        except ValueError as error:
            raise SpecError(f"{option}: {error}") from None
    if follow and until is not None:
        raise SpecError("--until says where to end, and --follow not to end: give one of them")
    start, end = moments["--since"], moments["--until"]
    if start is not None and end is not None and start > end:
        raise SpecError("--since is later than --until")
    try:
        re.compile(grep or "")
    except re.error as error:
        raise SpecError(f"--grep: {grep} is no regular expression: {error}") from None
    most = DEFAULT_LINES if lines is None and since is None else lines
    return Wanted((), follow, most, start, end, grep, leave_out)
