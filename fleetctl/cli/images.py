"""``fleetctl images``: container images on the boxes: which has which, and from box to box without a registry."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from fleetctl.cli import completing
from fleetctl.cli.options import DEFAULT_FLEET, AcceptNew, Debug, FleetFile, Json, SshConfig, TakeOver, Yes

app = typer.Typer(no_args_is_help=True, help="Container images on the boxes: list, prove, copy from box to box.")

Engine = Annotated[
    Literal["docker", "podman"] | None,
    typer.Option("--engine", help="What runs an image that no model of fleet.yaml is started from."),
]


@app.callback()
def _group() -> None:
    pass


@app.command()
def push(
    image: Annotated[
        str,
        typer.Argument(
            metavar="IMAGE|MODEL",
            help="The image, or the model that it is for.",
            autocompletion=completing.models,
        ),
    ],
    boxes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[BOX]…", help="Only these; default: all that need it.", autocompletion=completing.boxes
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="BOX", help="The box that has it.", autocompletion=completing.boxes),
    ] = None,
    limit: Annotated[
        str | None,
        typer.Option("--limit", help="Most bytes a second of all transfers together, like 2GB/s; none: no limit."),
    ] = None,
    engine: Engine = None,
    fleet: FleetFile = DEFAULT_FLEET,
    yes: Yes = False,
    take_over: TakeOver = False,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Copy an image from the box that has it to those that lack it, without a registry.

    It goes over the link, or through this machine where the boxes cannot reach each other. Only boxes that have it not
    are sent it; afterwards the IDs are compared.
    """
    from fleetctl.cli.mover import Mover
    from fleetctl.cli.session import open_fleet
    from fleetctl.plan.imagepush import PUSH
    from fleetctl.run.images import Wishes, chosen, plan_push
    from fleetctl.run.weights import parse_limit

    wishes = Wishes(source=source, to=tuple(boxes or ()), limit=parse_limit(limit))
    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config) as subject:
        wanted = chosen(subject.fleet, image, engine)
        mover = Mover(subject, as_json=json, yes=yes, take_over=take_over)
        mover.work(PUSH, lambda seen: plan_push(subject, seen, wanted, wishes))


@app.command("list")
def list_(
    fleet: FleetFile = DEFAULT_FLEET,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Say which box has which of the images that models are started from, with their IDs.

    Exit status 9 when a box lacks one, or has another than the rest.
    """
    from fleetctl.cli.output import console
    from fleetctl.cli.session import QUICK, open_fleet
    from fleetctl.cli.show_images import show_images, tell_images
    from fleetctl.errors import UnhealthyError
    from fleetctl.run.images import disagreements, images_of, look_at

    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config, partly=True, reach=QUICK) as subject:
        wanted = images_of(subject.fleet)
        found = list(zip(wanted, look_at(subject, wanted), strict=True))
        for box, error in subject.unreachable.items():
            console(error=True).print(f"{box}: {error.message}", style="yellow", markup=False)
    wrong = {one.name: lines for one, there in found if (lines := disagreements(one, there))}
    if json:
        tell_images(found, wrong)
    elif not found:
        console().print("no model of fleet.yaml is started from a container image")
    else:
        show_images(found, wrong, console())
    if wrong:
        raise typer.Exit(UnhealthyError.exit_code)


@app.command()
def verify(
    images: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[IMAGE|MODEL]…",
            help="Default: all that models are started from.",
            autocompletion=completing.models,
        ),
    ] = None,
    fleet: FleetFile = DEFAULT_FLEET,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Read images on every box, and hold each layer against the checksum that the image's ID stands for.

    Exit status 9 when a box lacks one, has another than the rest, or has one that is not what it was.
    """
    from fleetctl.cli.output import console
    from fleetctl.cli.session import open_fleet
    from fleetctl.cli.show_images import show_images, tell_images
    from fleetctl.cli.show_weights import Reading
    from fleetctl.errors import UnhealthyError
    from fleetctl.run.images import chosen, disagreements, images_of, look_at, prove

    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config) as subject:
        named = [one for name in images or () for one in chosen(subject.fleet, name)]
        wanted = named if images else images_of(subject.fleet)
        found = list(zip(wanted, look_at(subject, wanted), strict=True))
        wrong: dict[str, list[str]] = {}
        with Reading(as_json=json) as reading:
            for one, there in found:

                def hear(box: str, event: dict[str, object], name: str = one.name) -> None:
                    reading.hear(box, name, event)

                lines = [*disagreements(one, there), *prove(subject, one, there, hear)]
                wrong |= {one.name: lines} if lines else {}
    if json:
        tell_images(found, wrong)
    elif not found:
        console().print("no model of fleet.yaml is started from a container image")
    else:
        show_images(found, wrong, console())
    if wrong:
        raise typer.Exit(UnhealthyError.exit_code)
