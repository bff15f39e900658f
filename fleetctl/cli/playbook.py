"""``fleetctl playbook``."""

from __future__ import annotations

from typing import Annotated

import typer

from fleetctl.cli import completing
from fleetctl.cli.options import Debug, Json


def playbook(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[PLAYBOOK]", help="Print this one; default: list all.", autocompletion=completing.playbooks
        ),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Print a playbook, the stages of one kind of change, to be read, copied and changed.

    `fleetctl cutover --playbook FILE` (apply and rollback too) runs a changed copy.
    """
    from fleetctl.cli.output import console, emit
    from fleetctl.plan.shipped import playbook_text, shipped

    if name is not None:
        text = playbook_text(name)
        if json:
            emit("playbook", name=name, text=text)
        else:
            print(text, end="")
        return
    books = shipped()
    if json:
        emit("playbooks", playbooks=books)
        return
    width = max(map(len, books))
    out = console()
    for each, says in books.items():
        out.print(f"{each:{width}}  {says}", markup=False)
