"""``fleetctl init``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fleetctl.cli.options import AcceptNew, Debug, Json, Profiles, SshConfig


def init(
    hosts: Annotated[list[str], typer.Argument(metavar="HOST", help="Boxes: [USER@]HOST, the head of a split first.")],
    out: Annotated[Path, typer.Option("--out", help="File to write; it must not exist.")] = Path("fleet.yaml"),
    mix: Annotated[
        str | None, typer.Option("--mix", metavar="NAME", help="Traffic that concurrency is for, as profiles name it.")
    ] = None,
    profiles: Profiles = None,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Write a commented fleet.yaml from what is found on the boxes, and from what was measured of such ones.

    Where a profile fits the model and the boxes, its settings are written, each with its date and its evidence.
    """
    from fleetctl.cli.output import console, emit
    from fleetctl.cli.starter import write_starter

    ways: dict[str, Any] = {"accept_new": accept_new, "ssh_config": ssh_config}
    found = write_starter(hosts, out, **ways, profiles=profiles, mix=mix)
    if json:
        emit("init", file=str(out), boxes=found.boxes, profiles=found.profiles, told=found.told)
        return
    console().print(found.told, markup=False)
    wrote = f"wrote {out} for {', '.join(found.boxes)}; read it, then: "
    console().print(f"{wrote}fleetctl setup (what the boxes lack), fleetctl plan --to replicas", markup=False)
