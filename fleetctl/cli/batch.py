"""``fleetctl batch``: files of requests that are answered when engines have nothing better to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fleetctl.cli import completing
from fleetctl.cli.options import DEFAULT_FLEET, AcceptNew, Debug, FleetFile, Json, SshConfig, Via, Yes

if TYPE_CHECKING:
    from fleetctl.pool.batch.lines import Targets
    from fleetctl.run.batching import Way

app = typer.Typer(no_args_is_help=True, help="Files of requests, answered when engines have nothing better to do.")

Name = Annotated[str, typer.Argument(metavar="JOB", help="A job, as `fleetctl batch list` names it.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="File for the answers; default: beside you, named after the input."),
]
NatsUrl = Annotated[
    str | None,
    typer.Option("--nats", metavar="URL", help="A NATS server by its URL (nats://USER@HOST:4222); no fleet is needed."),
]
PasswordEnv = Annotated[
    str | None, typer.Option("--password-env", metavar="NAME", help="Environment variable with its password.")
]
PriceText = Annotated[
    str | None,
    typer.Option("--price", metavar="PROMPTS/ANSWERS", help="What a million tokens cost, like 0.10/0.40, to show it."),
]


@app.callback()
def _batch() -> None:
    pass


@app.command()
def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Requests, one a line (JSONL).")],
    out: Out = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Send every line to this model.", autocompletion=completing.models),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Stay until all is answered, and write it.")] = True,
    price: PriceText = None,
    nats: NatsUrl = None,
    password_env: PasswordEnv = None,
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Submit a file of requests, watch it, and write the answers in the order of the file.

    The file is in OpenAI's batch format, or has the bodies alone; every line is checked before any is submitted. The
    same command on the same file goes on where it was: nothing is submitted or answered twice. Ctrl-C leaves the job
    running. Exit status 9 when some requests were answered with errors.
    """
    from fleetctl.cli.show_batch import Shown, told_at_ctrl_c
    from fleetctl.pool.batch.estimate import parse_price
    from fleetctl.pool.batch.lines import read
    from fleetctl.pool.batch.output import paths
    from fleetctl.run.batch_jobs import carry_out

    per_token = parse_price(price) if price is not None else None
    where = paths(file.name, out)
    data = file.read_bytes()
    with _way(nats, password_env, fleet, via, accept_new, ssh_config, model, lines=True) as (way, targets):
        batch = read(str(file), data, targets)
        with told_at_ctrl_c() as left, Shown(per_token, left, as_json=json) as shown:
            done = carry_out(way, batch, where if wait else None, shown)
    if done is not None and done.failed:
        raise typer.Exit(9)


@app.command("list")
def list_(
    nats: NatsUrl = None,
    password_env: PasswordEnv = None,
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Say which jobs there are, and how far each is."""
    from fleetctl.cli.show_batch import show_jobs
    from fleetctl.run.batch_jobs import jobs

    with _way(nats, password_env, fleet, via, accept_new, ssh_config) as (way, _):
        show_jobs(jobs(way), as_json=json)


@app.command()
def status(
    job: Name,
    price: PriceText = None,
    nats: NatsUrl = None,
    password_env: PasswordEnv = None,
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Say how far one job is: lines answered, waiting, and not submitted; errors, tokens and cost."""
    from fleetctl.cli.show_batch import show_job
    from fleetctl.pool.batch.estimate import parse_price
    from fleetctl.run.batch_jobs import look

    per_token = parse_price(price) if price is not None else None
    with _way(nats, password_env, fleet, via, accept_new, ssh_config) as (way, _):
        show_job(*look(way, job), per_token, as_json=json)


@app.command()
def fetch(
    job: Name,
    out: Out = None,
    partial: Annotated[bool, typer.Option("--partial", help="Also when some requests are not answered yet.")] = False,
    nats: NatsUrl = None,
    password_env: PasswordEnv = None,
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Write the answers of a job, in the order of its file; its file is not needed. Errors go into a file beside it.

    Exit status 9 when some requests were answered with errors, or were cancelled.
    """
    from fleetctl.cli.show_batch import show_written
    from fleetctl.run.batch_jobs import fetch as fetched

    with _way(nats, password_env, fleet, via, accept_new, ssh_config) as (way, _):
        done = fetched(way, job, out, partial=partial)
    show_written(job, done, as_json=json)
    if done.failed:
        raise typer.Exit(9)


@app.command()
def cancel(
    job: Name,
    nats: NatsUrl = None,
    password_env: PasswordEnv = None,
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Remove what waits of a job. What is answered stays; `fleetctl batch run` on its file goes on with it."""
    from fleetctl.cli.show_batch import show_cancelled
    from fleetctl.run.batch_jobs import cancel as cancelled

    with _way(nats, password_env, fleet, via, accept_new, ssh_config) as (way, _):
        show_cancelled(*cancelled(way, job), as_json=json)


@app.command()
def remove(
    job: Name,
    nats: NatsUrl = None,
    password_env: PasswordEnv = None,
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    yes: Yes = False,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Remove a job with its answers, which are kept in the fleet until then."""
    from fleetctl.cli.ask import confirm
    from fleetctl.cli.output import console, emit
    from fleetctl.errors import RefusedError
    from fleetctl.run.batch_jobs import remove as removed

    with _way(nats, password_env, fleet, via, accept_new, ssh_config) as (way, _):
        if not yes and not confirm(f"Remove {job} and all of its answers from the fleet?"):
            raise RefusedError("not done; the job is as it was")
        removed(way, job)
    if json:
        emit("removed", job=job)
    else:
        console().print(f"{job} is removed", markup=False)


@contextlib.contextmanager
def _way(
    nats: str | None,
    password_env: str | None,
    fleet: Path,
    via: str | None,
    accept_new: bool,
    ssh_config: Path | None,
    model: str | None = None,
    *,
    lines: bool = False,
) -> Iterator[tuple[Way, Targets]]:
    """How NATS is reached, and the models that requests may go to; the adapters too where there are ``lines``."""
    import logging

    from fleetctl.cli.session import QUICK, fleet_file, open_fleet
    from fleetctl.errors import SpecError
    from fleetctl.pool.batch.lines import Targets
    from fleetctl.run.batching import adapters_of, boxes_of, straight, targets_of, way
    from fleetctl.spec.secret import Secret

    logging.getLogger("fleetctl.pool").setLevel(logging.CRITICAL)  # what it would say is shown as it goes
    if nats is not None:
        secret = Secret(env=password_env).read() if password_env is not None else None
        yield straight(nats, secret), Targets({}, {}, model or "")
        return
    if password_env is not None:
        raise SpecError("--password-env goes with --nats; a fleet's password is where fleet.yaml says")
    if via is None:
        known = fleet_file(fleet, None, accept_new=accept_new, ssh_config=ssh_config)
        boxes_of(known)
        targets_of(known, model)
    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config, via=via, partly=True, reach=QUICK) as subject:
        targets = targets_of(subject.fleet, model, adapters_of(subject) if lines else {})
        with way(subject) as found:
            yield found, targets
