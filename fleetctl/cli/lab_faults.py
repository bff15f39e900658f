"""``fleetctl lab unplug|plug|off|on``: what goes wrong with a box, made to happen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fleetctl.cli.lab_demo import DEFAULT_DIR, Root
from fleetctl.cli.options import Debug, Json

if TYPE_CHECKING:
    from fleetctl.lab.lab import Lab

Name = Annotated[str, typer.Argument(metavar="BOX", help="Box.")]


def _do(directory: Path, name: str, as_json: bool, act: Callable[[Lab], None], state: str, says: str) -> None:
    from fleetctl.cli.output import console, emit
    from fleetctl.lab.lab import Lab

    act(Lab(directory))
    if as_json:
        emit("lab", box=name, state=state)
    else:
        console().print(f"{name} {says}", markup=False)


def unplug(name: Name, directory: Root = DEFAULT_DIR, json: Json = False, debug: Debug = False) -> None:
    """Pull a box's network cable: nothing is refused, packets are lost. A reboot plugs it in again."""
    _do(directory, name, json, lambda lab: lab.vanish(name), "unplugged", "is without its network; `plug` puts it back")


def plug(name: Name, directory: Root = DEFAULT_DIR, json: Json = False, debug: Debug = False) -> None:
    """Put a box's network cable back."""
    _do(directory, name, json, lambda lab: lab.reappear(name), "plugged", "has its network")


def off(name: Name, directory: Root = DEFAULT_DIR, json: Json = False, debug: Debug = False) -> None:
    """Cut a box's power: everything in it is killed at once. What it wrote stays."""
    _do(
        directory, name, json, lambda lab: lab.power_off(name), "off", "is off; `on` boots it with the disk that it had"
    )


def on(name: Name, directory: Root = DEFAULT_DIR, json: Json = False, debug: Debug = False) -> None:
    """Boot a box that is off, with the disk that it had, and wait until it answers."""
    _do(directory, name, json, lambda lab: lab.power_on(name), "on", "is up")
