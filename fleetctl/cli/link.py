"""``fleetctl link``: the network between the boxes."""

from __future__ import annotations

from typing import Annotated

import typer

from fleetctl.cli import completing
from fleetctl.cli.options import DEFAULT_FLEET, AcceptNew, Debug, FleetFile, Json, SshConfig, Via

app = typer.Typer(no_args_is_help=True, help="Measure the network between the boxes.")


@app.callback()
def _group() -> None:
    pass


@app.command()
def test(
    boxes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[BOX]…", help="Two boxes or more; default: all.", autocompletion=completing.boxes),
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.2, max=30, help="Seconds of each flow.")] = 3.0,
    streams: Annotated[int, typer.Option("--streams", min=1, max=16, help="Streams of the flow with several.")] = 4,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, even when engines use the link.")] = False,
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Measure bandwidth and latency between every pair of boxes, over the link and over their own addresses.

    Exit status 9 when a pair could not be measured. Nothing is changed or kept on the boxes.
    """
    from fleetctl.cli.ask import confirm
    from fleetctl.cli.output import console, emit
    from fleetctl.cli.session import open_fleet
    from fleetctl.cli.show_link import show, told
    from fleetctl.doctor.link.measured import Measured
    from fleetctl.errors import UnhealthyError
    from fleetctl.run.linktest import GENTLE, Load, measure, pairs, users_of_link

    failed = 0
    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config, via=via, partly=True) as subject:
        wanted, load = pairs(subject.fleet, boxes), Load(seconds, streams)
        users = users_of_link(subject)
        if users:
            load = GENTLE
            warning = (
                f"{', '.join(users)} serves over the link: the test takes bandwidth from it, and is cut down to one "
                f"stream and {load.seconds:g} s each way"
            )
            if json:
                emit("warning", message=warning)
            else:
                console().print(warning, style="yellow", markup=False)
            if not yes and not confirm("Measure all the same?"):
                raise typer.Exit(0)
        out = console(error=True)
        for one in measure(
            subject, wanted, load, (lambda line: None) if json else lambda line: out.print(line, markup=False)
        ):
            failed += not isinstance(one, Measured)
            if json:
                emit("pair", **told(one))
            else:
                show(one)
    if failed:
        raise typer.Exit(UnhealthyError.exit_code)
