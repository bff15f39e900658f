"""``fleetctl init``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fleetctl.cli.options import AcceptNew, Debug, Json, SshConfig


def init(
    hosts: Annotated[list[str], typer.Argument(metavar="HOST", help="Boxes: [USER@]HOST, the head of a split first.")],
    out: Annotated[Path, typer.Option("--out", help="File to write; it must not exist.")] = Path("fleet.yaml"),
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Write a commented fleet.yaml from what is found on the boxes."""
    from fleetctl.cli.output import console, emit
    from fleetctl.cli.starter import write_starter

    found = write_starter(hosts, out, accept_new=accept_new, ssh_config=ssh_config)
    if json:
        emit("init", file=str(out), boxes=found)
    else:
        out_words = f"wrote {out} for {', '.join(found)}; read it, then: "
        console().print(f"{out_words}fleetctl setup (what the boxes lack), fleetctl plan --to replicas", markup=False)
