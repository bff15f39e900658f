"""``fleetctl render``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fleetctl.cli import completing
from fleetctl.cli.options import DEFAULT_FLEET, Debug, FleetFile, Json


def render(
    out: Annotated[Path, typer.Option("--out", help="Folder to write to: OUT/LAYOUT/BOX/path/on/the/box.")],
    fleet: FleetFile = DEFAULT_FLEET,
    layout: Annotated[
        str | None,
        typer.Option(
            "--layout", metavar="LAYOUT", help="One layout; default: every layout.", autocompletion=completing.layouts
        ),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write every file that the layouts put on the boxes, without touching a box."""
    from fleetctl.cli.output import console, emit
    from fleetctl.render.layout import render_layout
    from fleetctl.run.gate_tasks import gate_tasks
    from fleetctl.spec.load import load_fleet

    loaded = load_fleet(fleet)
    gate_tasks(loaded.fleet, loaded.text, loaded.path)  # they are part of a plan, and no file on a box
    layouts = [layout] if layout else list(loaded.fleet.layouts)
    releases = {name: render_layout(loaded.fleet, name, spec_text=loaded.text) for name in layouts}
    written = 0
    for name, release in releases.items():
        for box, files in release.files.items():
            for file in files:
                target = out / name / box / file.path.lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(file.content)
                target.chmod(file.mode)
                written += 1
                if json:
                    emit("file", layout=name, box=box, path=file.path, mode=oct(file.mode), written=str(target))
    if not json:
        console().print(f"{written} files in {out} ({', '.join(layouts)}); secrets stand as @secret:NAME@")
