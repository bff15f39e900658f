"""``fleetctl lora``: LoRA adapters to every copy of a model, and away again, while it serves."""

from __future__ import annotations

from pathlib import Path
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
    Via,
    Yes,
)

app = typer.Typer(no_args_is_help=True, help="LoRA adapters: to every copy of a model, and away again, as it serves.")

User = Annotated[
    str | None,
    typer.Option("--user", metavar="USER", help="Log in on every box as this user: one who may do this and no more."),
]


@app.callback()
def _lora() -> None:
    pass


@app.command()
def push(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR…", help="Folders of adapters (PEFT), or a folder with such folders in it."),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="The model; default: the only one that takes adapters.",
            autocompletion=completing.models,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", "-n", help="What clients ask for; default: the folder's name.")
    ] = None,
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    user: User = None,
    yes: Yes = False,
    take_over: TakeOver = False,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Bring adapters to every copy of a model, without a restart; all copies have them afterwards, or none.

    A bad one is refused before any copy is touched. They survive restarts, and are models of their own at the proxy.
    """
    import time

    from fleetctl.cli.mover import Mover
    from fleetctl.cli.session import open_fleet
    from fleetctl.run.adapters import model_for, offered, plan_push

    new, at = offered(folders, name), round(time.time(), 3)
    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config, via=via, user=user) as subject:
        chosen = model_for(subject.fleet, model)
        mover = Mover(subject, as_json=json, yes=yes, take_over=take_over)
        mover.work("lora push", lambda seen: plan_push(subject, seen, new, chosen, at))


@app.command()
def remove(
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="Adapters, as clients ask for them.")],
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    user: User = None,
    yes: Yes = False,
    take_over: TakeOver = False,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Take adapters from every copy and every box; requests that run with one are answered."""
    from fleetctl.cli.mover import Mover
    from fleetctl.cli.session import open_fleet
    from fleetctl.run.adapters import plan_remove

    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config, via=via, user=user) as subject:
        mover = Mover(subject, as_json=json, yes=yes, take_over=take_over)
        mover.work("lora remove", lambda seen: plan_remove(subject, seen, names))


@app.command("list")
def list_(
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    user: User = None,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Say which adapters there are, and which of them every copy has.

    Exit status 9 when a copy is without one, a box lacks one, or a file is not what was sent.
    """
    from dataclasses import asdict

    from fleetctl.cli.output import console, emit
    from fleetctl.cli.session import open_fleet
    from fleetctl.cli.show_lora import show_adapters
    from fleetctl.errors import UnhealthyError
    from fleetctl.run.adapters_seen import adapters_seen

    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config, via=via, user=user) as subject:
        found = adapters_seen(subject)
    if json:
        adapters = {m: {n: one.model_dump(mode="json") for n, one in e.items()} for m, e in found.adapters.items()}
        emit("adapters", **{**asdict(found), "adapters": adapters})
    else:
        show_adapters(found, console())
    if found.problems:
        raise typer.Exit(UnhealthyError.exit_code)


@app.command()
def role(
    user: Annotated[str, typer.Argument(metavar="USER", help="The login name on the boxes.")],
    out: Annotated[Path, typer.Option("--write", metavar="DIR", help="Folder for the files; it is made.")],
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write what a box needs so that USER can push, list and remove adapters there, and do nothing else."""
    from fleetctl.cli.output import console, emit
    from fleetctl.run.role import write_role

    written = write_role(user, out)
    if json:
        emit("role", user=user, files=[str(path) for path in written])
        return
    for path in written:
        console().print(str(path), markup=False)
    console().print(f"{out}/README says where each goes (docs/lora.md says why)", markup=False)
