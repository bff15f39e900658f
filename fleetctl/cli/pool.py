"""``fleetctl pool``: which models of the pool are loaded where, and what an operator wishes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fleetctl.cli import completing
from fleetctl.cli.options import DEFAULT_FLEET, AcceptNew, Debug, FleetFile, Json, SshConfig, Via

if TYPE_CHECKING:
    from fleetctl.run.pool import Wish

app = typer.Typer(no_args_is_help=True, help="The models of a pool: what is loaded where, and what waits.")

ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help="A model of the pool.", autocompletion=completing.models)
]
BoxNames = Annotated[
    list[str] | None,
    typer.Option("--box", metavar="BOX", help="Only on this box; may be repeated.", autocompletion=completing.boxes),
]


@app.callback()
def _pool() -> None:
    pass


@app.command()
def status(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="Only this model; default: all.", autocompletion=completing.models),
    ] = None,
    box: BoxNames = None,
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Show what every worker has loaded, what runs and what waits.

    Exit status 9 when a box cannot be reached, or its worker does not answer, has no connection to NATS, or could not
    load a model.
    """
    from fleetctl.cli.output import console, emit
    from fleetctl.cli.session import QUICK, open_fleet
    from fleetctl.cli.show_pool import show_pool
    from fleetctl.errors import SpecError, UnhealthyError
    from fleetctl.run.pool import pool_seen
    from fleetctl.spec.problems import near_or_all

    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config, via=via, partly=True, reach=QUICK) as subject:
        seen = pool_seen(subject, box or ())
    if model is not None and seen.workers and not seen.boxes_of(model):
        known = sorted({name for worker in seen.workers.values() for name in worker.models})
        raise SpecError(f"the pool has no model {model}", hint=near_or_all(model, known))
    if json:
        workers = {name: worker.model_dump(mode="json") for name, worker in seen.workers.items()}
        emit("pool", workers=workers, silent=seen.silent, without=seen.without, problems=seen.problems)
    else:
        show_pool(seen, model, console())
    if seen.problems:
        raise typer.Exit(UnhealthyError.exit_code)


@app.command()
def load(
    model: ModelName,
    box: BoxNames = None,
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Load a model now, without a request for it; others make room. It can be evicted later as any other."""
    _tell(model, "load", box, fleet, via=via, json=json, accept_new=accept_new, ssh_config=ssh_config)


@app.command()
def evict(
    model: ModelName,
    box: BoxNames = None,
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Take a model out of memory once its requests are answered, and keep it out until it is loaded or pinned.

    Its requests wait meanwhile, for another box that has it or until their time is over.
    """
    _tell(model, "evict", box, fleet, via=via, json=json, accept_new=accept_new, ssh_config=ssh_config)


@app.command()
def pin(
    model: ModelName,
    box: BoxNames = None,
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Load a model and never evict it. `pin: true` in fleet.yaml says the same for good."""
    _tell(model, "pin", box, fleet, via=via, json=json, accept_new=accept_new, ssh_config=ssh_config)


@app.command()
def unpin(
    model: ModelName,
    box: BoxNames = None,
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Let a model go when others need its memory. It stays loaded until then."""
    _tell(model, "unpin", box, fleet, via=via, json=json, accept_new=accept_new, ssh_config=ssh_config)


def _tell(
    model: str,
    what: Wish,
    boxes: list[str] | None,
    fleet: FleetFile,
    *,
    via: str | None,
    json: bool,
    accept_new: bool,
    ssh_config: SshConfig,
) -> None:
    from fleetctl.cli.output import console, emit
    from fleetctl.cli.session import QUICK, open_fleet
    from fleetctl.cli.show_pool import told_words
    from fleetctl.run.pool import wish

    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config, via=via, partly=True, reach=QUICK) as subject:
        told = wish(subject, model, what, boxes or ())
    if json:
        emit("wished", model=model, wish=what, boxes=told)
        return
    for name, answer in told.items():
        console().print(f"{name}: {told_words(model, what, answer)}", markup=False)
