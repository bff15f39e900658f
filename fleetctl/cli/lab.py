"""``fleetctl lab``: boxes on this machine, to try and to test everything on."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import typer

from fleetctl.cli import lab_demo, lab_faults
from fleetctl.cli.lab_demo import DEFAULT_DIR, Root
from fleetctl.cli.options import Debug, Json

app = typer.Typer(no_args_is_help=True, help="Boxes on this machine, to try and to test everything on.")

Names = Annotated[list[str] | None, typer.Argument(help="Boxes; default: all.")]


@app.command()
def up(
    boxes: Annotated[int | None, typer.Option("--boxes", "-n", min=1, help="How many; default: 2.")] = None,
    engine: Annotated[Literal["standin", "vllm"], typer.Option(help="Stand-in, or real vLLM on the CPU.")] = "standin",
    podman: Annotated[bool, typer.Option("--podman", help="Boxes with Podman, the stand-in in containers.")] = False,
    docker: Annotated[bool, typer.Option("--docker", help="The same with Docker.")] = False,
    directory: Root = DEFAULT_DIR,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Make the boxes, with their SSH key and a fleet.yaml."""
    from fleetctl.cli.output import console, emit
    from fleetctl.errors import SpecError
    from fleetctl.lab.engines import bring_up
    from fleetctl.lab.lab import Lab

    if podman and docker:
        raise SpecError("the boxes of a lab have Podman or Docker, not both", hint="leave out --podman or --docker")
    lab = Lab(directory)
    say = (lambda line: emit("progress", text=line)) if json else (lambda line: console(error=True).print(line))
    made = bring_up(lab, boxes, engine, say, containers="podman" if podman else "docker" if docker else None)
    if json:
        emit("lab", fleet=str(lab.fleet_file), boxes=[{"name": box.name, "address": box.address} for box in made])
        return
    first = "split" if len(made) > 1 else "replicas"
    here = "" if directory == DEFAULT_DIR else f" --dir {directory}"
    console().print(
        f"\n{len(made)} boxes are up. Next:\n"
        f"  export FLEETCTL_FLEET={lab.fleet_file}\n"
        f"  fleetctl cutover --to {first}\n"
        f"  curl http://{made[0].address}:8080/v1/models\n"
        f"  fleetctl lab ssh{here} {made[0].name}\n"
        f"  fleetctl lab down{here}",
        markup=False,
    )


@app.command()
def down(
    directory: Root = DEFAULT_DIR,
    keep_base: Annotated[bool, typer.Option("--keep-base", help="Keep what was downloaded for the boxes.")] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Power the boxes off and remove all that the lab made."""
    from fleetctl.cli.output import console, emit
    from fleetctl.lab.lab import Lab

    say = (lambda line: emit("progress", text=line)) if json else (lambda line: console(error=True).print(line))
    Lab(directory).down(say, keep_base=keep_base)
    if json:
        emit("lab", state="down")


@app.command()
def reset(
    names: Names = None,
    directory: Root = DEFAULT_DIR,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Throw away what happened in boxes and boot them fresh."""
    from fleetctl.cli.output import console, emit
    from fleetctl.lab.engines import load_image
    from fleetctl.lab.lab import Lab

    say = (lambda line: emit("progress", text=line)) if json else (lambda line: console(error=True).print(line))
    lab = Lab(directory)
    lab.reset(names or None, say)
    if lab.containers:
        load_image(lab, names or [box.name for box in lab.boxes()], say)
    if json:
        emit("lab", state="reset", boxes=names or "all")


@app.command()
def status(directory: Root = DEFAULT_DIR, json: Json = False, debug: Debug = False) -> None:
    """Say which boxes are up."""
    from dataclasses import asdict

    from rich.table import Table

    from fleetctl.cli.output import console, emit
    from fleetctl.lab.lab import Lab
    from fleetctl.spec.units import seconds

    boxes = Lab(directory).status()
    if json:
        for box in boxes:
            emit("box", **asdict(box))
        return
    if not boxes:
        console().print(f"no lab in {directory}; `fleetctl lab up` makes one")
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("box", "address", "running", "ssh", "up for"):
        table.add_column(name)
    for box in boxes:
        up_for = seconds(box.uptime) if box.uptime is not None else "-"
        table.add_row(box.name, box.address, "yes" if box.running else "no", "yes" if box.ssh_ok else "no", up_for)
    console().print(table)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def ssh(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Box.")],
    user: Annotated[str, typer.Option(help="Login user.")] = "fleet",
    directory: Root = DEFAULT_DIR,
    debug: Debug = False,
) -> None:
    """Log in to a box, or run a command there."""
    from fleetctl.lab.lab import Lab

    argv = [*Lab(directory).ssh_argv(name, user), *context.args]
    os.execvp(argv[0], argv)


app.command("demo")(lab_demo.demo)
app.command("unplug")(lab_faults.unplug)
app.command("plug")(lab_faults.plug)
app.command("off")(lab_faults.off)
app.command("on")(lab_faults.on)
