"""``fleetctl import``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fleetctl.cli import completing
from fleetctl.cli.options import DEFAULT_FLEET, Debug, Json, Yes
from fleetctl.importing.kind import Kind

if TYPE_CHECKING:
    from fleetctl.importing.entries import Entries


def import_file(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="What to read; - for standard input.")] = None,
    command: Annotated[
        str | None, typer.Option("--command", metavar="'vllm serve …'", help="A command instead of a file.")
    ] = None,
    kind: Annotated[Kind | None, typer.Option("--kind", help="What kind of file it is; default: seen.")] = None,
    into: Annotated[
        Path | None,
        typer.Option("--into", metavar="FLEET.YAML", help="Write it into this file; shown and asked first."),
    ] = None,
    boxes: Annotated[
        str | None, typer.Option("--boxes", metavar="A,B", help="Boxes to run on; default: those of --into.")
    ] = None,
    layout: Annotated[
        str | None, typer.Option("--layout", metavar="NAME", help="Name of the layout; default: split or replicas.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="NAME", help="What the servers of a proxy serve.", autocompletion=completing.models
        ),
    ] = None,
    yes: Yes = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Make entries for fleet.yaml of what runs engines today: recipes, compose files, units, commands, proxies.

    What was not understood is listed, line by line. Secrets become references; their values are shown nowhere.
    """
    from fleetctl.cli.output import console, emit, say
    from fleetctl.errors import SpecError
    from fleetctl.importing.entries import entries
    from fleetctl.importing.kinds import read
    from fleetctl.importing.written import document
    from fleetctl.proxy.lint.kinds import load
    from fleetctl.spec.load import load_fleet

    if (file is None) == (command is None):
        raise SpecError("name a file (- for standard input), or give --command '…'")
    if file is not None:
        name, text, _ = load(file)
    else:
        name, text = "--command", command or ""
    wanted = Kind.COMMAND if command is not None and kind is None else kind
    found = read(name, text, wanted)
    there = load_fleet(into) if into is not None else None
    named = [box.strip() for box in boxes.split(",") if box.strip()] if boxes else []
    made = entries(found, there.fleet if there else None, boxes=named, layout=layout, model=model)
    if there is None:
        written = document(made, name)
        if json:
            emit("entries", of=made.kind, yaml=written)
        else:
            console().out(written, end="", highlight=False)
    for note in sorted(made.notes):
        if json:
            emit("note", file=note.place.file, line=note.place.line, text=note.text)
        else:
            say(str(note), as_json=False)
    if there is not None:
        _write(there.path, there.text, made, yes=yes, json=json)


def _write(file: Path, text: str, made: Entries, *, yes: bool, json: bool) -> None:
    """Show what the file becomes, ask, and write it."""
    from fleetctl.cli.ask import confirm
    from fleetctl.cli.output import console, emit
    from fleetctl.cli.show_tune import difference, show_difference
    from fleetctl.errors import RefusedError
    from fleetctl.importing.written import sections, superseded
    from fleetctl.spec.edit import save
    from fleetctl.spec.entries import with_entries

    after = with_entries(text, sections(made), superseded(made), str(file))
    diff = difference(str(file), text, after, "imported")
    if not json:
        show_difference(diff, console())
        for key, setting in made.proxy.items():
            console().print(
                f"the proxy had {key}: {setting.value} ({setting.remark}); proxy: is left as it is", markup=False
            )
        if made.placings and not made.placed:
            console().print("no layout was made: on which boxes it runs is not known; --boxes says it", markup=False)
    if diff:
        if not yes and not confirm(f"Write this into {file}?"):
            raise RefusedError("not done; nothing was changed")
        save(file, text, after)
    if json:
        emit("written", file=str(file), diff=diff, proxy={key: setting.value for key, setting in made.proxy.items()})
    else:
        if not diff:
            told = f"nothing is written: {file} has all that was understood of it"
        elif made.layout:
            told = f"{file} is written; `fleetctl plan --to {made.layout}{_named(file)}` shows what it does"
        else:
            told = f"{file} is written"
        console().print(told, markup=False, soft_wrap=True)


def _named(file: Path) -> str:
    """The option that a command needs for this file; none where it is the one that commands take by themselves."""
    import os
    import shlex

    taken = os.environ.get("FLEETCTL_FLEET") or DEFAULT_FLEET
    return "" if Path(taken).absolute() == file.absolute() else f" --fleet {shlex.quote(str(file))}"
