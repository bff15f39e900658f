"""``fleetctl weights``: models' files on the boxes: fetched, sent from box to box, proven, and removed."""

from __future__ import annotations

from typing import Annotated

import typer

from fleetctl.cli import completing
from fleetctl.cli.options import DEFAULT_FLEET, AcceptNew, Debug, FleetFile, Json, SshConfig, TakeOver, Yes

app = typer.Typer(no_args_is_help=True, help="Weights of models on the boxes: fetch, send, verify, remove.")

Models = Annotated[
    list[str] | None,
    typer.Argument(metavar="[MODEL]…", help="Models of fleet.yaml; default: all.", autocompletion=completing.models),
]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model of fleet.yaml.", autocompletion=completing.models)]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="BOX", help="The box that has them right.", autocompletion=completing.boxes),
]
To = Annotated[
    list[str] | None,
    typer.Option(
        "--to", metavar="BOX", help="Only these; default: all that need them.", autocompletion=completing.boxes
    ),
]
On = Annotated[
    str | None,
    typer.Option("--on", metavar="BOX", help="The box; default: the first.", autocompletion=completing.boxes),
]
OnBoxes = Annotated[
    list[str] | None,
    typer.Option("--on", metavar="BOX", help="Only these boxes.", autocompletion=completing.boxes),
]
Limit = Annotated[
    str | None,
    typer.Option("--limit", help="Most bytes a second of all transfers together, like 2GB/s; none: no limit."),
]
Streams = Annotated[
    int | None, typer.Option("--streams", min=1, max=16, help="Connections to each box; default: by its CPUs.")
]


@app.callback()
def _group() -> None:
    pass


@app.command()
def push(
    models: Models = None,
    source: From = None,
    to: To = None,
    limit: Limit = None,
    streams: Streams = None,
    fleet: FleetFile = DEFAULT_FLEET,
    yes: Yes = False,
    take_over: TakeOver = False,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Bring weights from the box that has them to all others that need them, over the link.

    What is there already is not sent again, nor what an earlier transfer brought before it was cut off. Each part is
    proven by its SHA-256; a model appears at its place when all of it is.
    """
    from fleetctl.cli.mover import Mover
    from fleetctl.cli.session import open_fleet
    from fleetctl.plan.weights import PUSH
    from fleetctl.run.weights import Wishes, parse_limit, plan_push

    wishes = Wishes(source=source, to=tuple(to or ()), limit=parse_limit(limit), streams=streams)
    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config) as subject:
        mover = Mover(subject, as_json=json, yes=yes, take_over=take_over)
        mover.work(PUSH, lambda seen: plan_push(subject, seen, models or (), wishes))


@app.command()
def pull(
    model: Model,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="SOURCE", help="For a folder: one of this machine, or a hub id."),
    ] = None,
    on: On = None,
    here: Annotated[bool, typer.Option("--here", help="Fetch on this machine, and send it over SSH.")] = False,
    limit: Limit = None,
    fleet: FleetFile = DEFAULT_FLEET,
    yes: Yes = False,
    take_over: TakeOver = False,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Get a model from the hub, or from a folder of this machine, onto one box; `weights push` brings it to the others.

    The box fetches a hub id itself where its engine's environment has huggingface_hub; else this machine does.
    """
    from fleetctl.cli.mover import Mover
    from fleetctl.cli.session import open_fleet
    from fleetctl.plan.weights import PULL
    from fleetctl.run.pulling import plan_pull
    from fleetctl.run.weights import parse_limit

    rate = parse_limit(limit)
    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config) as subject:
        mover = Mover(subject, as_json=json, yes=yes, take_over=take_over)
        mover.work(PULL, lambda seen: plan_pull(subject, seen, model, source=source, on=on, here=here, limit=rate))


@app.command()
def verify(
    models: Models = None,
    full: Annotated[bool, typer.Option("--full", help="Read every file, not only those that were touched.")] = False,
    repair: Annotated[bool, typer.Option("--repair", help="Send what is wrong again, from a right one.")] = False,
    accept: Annotated[bool, typer.Option("--accept", help="Record what is there now as right.")] = False,
    source: From = None,
    boxes: OnBoxes = None,
    limit: Limit = None,
    fleet: FleetFile = DEFAULT_FLEET,
    yes: Yes = False,
    take_over: TakeOver = False,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Hold the files on every box against their checksums, and the boxes against each other.

    Only what was touched since is read, or with --full all of it. Exit status 9 when something is not right.
    """
    from fleetctl.cli.mover import Mover
    from fleetctl.cli.output import console
    from fleetctl.cli.session import open_fleet
    from fleetctl.cli.show_weights import Reading, show_found, tell_found
    from fleetctl.errors import SpecError, UnhealthyError
    from fleetctl.plan.weights import REPAIR
    from fleetctl.run.weights import Wishes, disagreements, parse_limit, plan_push, wanted_places
    from fleetctl.run.weights import verify as verified

    if repair and accept:
        raise SpecError("--repair and --accept are opposites", hint="--accept records what is there now as right")
    wishes = Wishes(source=source, to=tuple(boxes or ()), limit=parse_limit(limit))
    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config) as subject:
        wanted = wanted_places(subject.fleet, models or (), () if repair else boxes or ())
        with Reading(as_json=json) as reading:
            found = verified(subject, wanted, reading.hear, full=full, accept=accept)
        wrong = disagreements(found)
        if json:
            tell_found(found, wrong)
        else:
            show_found(found, wrong, console())
        if wrong and repair:
            mover = Mover(subject, as_json=json, yes=yes, take_over=take_over)
            mover.work(REPAIR, lambda seen: plan_push(subject, seen, list(wrong), wishes, found))
            return
    if wrong:
        raise typer.Exit(UnhealthyError.exit_code)


@app.command()
def prune(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FOLDER|ID[@COMMIT]]…", help="Only these; default: all that fleetctl put there."),
    ] = None,
    needed: Annotated[bool, typer.Option("--needed", help="Also what is needed, where it is named.")] = False,
    fleet: FleetFile = DEFAULT_FLEET,
    yes: Yes = False,
    take_over: TakeOver = False,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Remove weights that no layout and no kept generation uses, and what transfers that were cut off have left.

    Only what fleetctl put on the boxes; another revision in a hub's cache has to be named.
    """
    from fleetctl.cli.mover import Mover
    from fleetctl.cli.session import open_fleet
    from fleetctl.plan.weights import PRUNE
    from fleetctl.run.pruning import plan_prune

    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config) as subject:
        mover = Mover(subject, as_json=json, yes=yes, take_over=take_over)
        mover.work(PRUNE, lambda seen: plan_prune(subject, seen, names or (), needed=needed))


@app.command()
def status(
    models: Models = None,
    fleet: FleetFile = DEFAULT_FLEET,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Say which box has which weights, and whether they are proven. Nothing is read but sizes and times.

    Exit status 9 when a box that needs weights does not have them proven, or has others than the rest.
    """
    from fleetctl.cli.output import console
    from fleetctl.cli.session import QUICK, open_fleet
    from fleetctl.cli.show_weights import show_found, tell_found
    from fleetctl.errors import UnhealthyError
    from fleetctl.run.weights import disagreements, look_at, wanted_places

    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config, partly=True, reach=QUICK) as subject:
        found = look_at(subject, wanted_places(subject.fleet, models or ()))
        wrong = disagreements(found)
        for box, error in subject.unreachable.items():
            console(error=True).print(f"{box}: {error.message}", style="yellow", markup=False)
    if json:
        tell_found(found, wrong)
    else:
        show_found(found, wrong, console())
    if wrong:
        raise typer.Exit(UnhealthyError.exit_code)
