"""``fleetctl profile``: what was measured of models on kinds of boxes, here and elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fleetctl.cli import completing
from fleetctl.cli.options import DEFAULT_FLEET, AcceptNew, Debug, FleetFile, Json, Profiles, SshConfig

app = typer.Typer(
    help="Settings that were measured of a model on a kind of box, each with its evidence.", no_args_is_help=True
)


@app.command("list")
def list_profiles(
    profiles: Profiles = None, fleet: FleetFile = DEFAULT_FLEET, json: Json = False, debug: Debug = False
) -> None:
    """List all profiles: your own first, then those that ship with fleetctl; then the ready entries for pools.

    No box is asked.
    """
    from fleetctl.cli.output import console, emit
    from fleetctl.cli.show_entry import show_entries
    from fleetctl.cli.show_profile import show_all
    from fleetctl.profiles.folders import known_entries, known_profiles, own_folders

    known, entries = known_profiles(own_folders(profiles, fleet)), known_entries()
    if json:
        for one in known:
            emit("profile", file=one.file, own=one.own, **one.profile.model_dump(mode="json", exclude_none=True))
        for entry in entries.values():
            emit("entry", task=entry.task, **entry.model_dump(mode="json", exclude_unset=True))
    else:
        show_all(known, console())
        show_entries(entries.values(), console())


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of a profile or an entry.", autocompletion=completing.profiles)
    ],
    profiles: Profiles = None,
    fleet: FleetFile = DEFAULT_FLEET,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show a profile: its settings, and of each where it is from. Of a ready entry: what goes into fleet.yaml."""
    from fleetctl.cli.output import console, emit
    from fleetctl.cli.show_entry import show_entry
    from fleetctl.cli.show_profile import show_one
    from fleetctl.errors import SpecError
    from fleetctl.profiles.folders import known_entries, known_profiles, own_folders
    from fleetctl.spec.problems import near_or_all

    known = {one.profile.profile: one for one in known_profiles(own_folders(profiles, fleet))}
    entries = known_entries()
    if name not in known and name in entries:
        entry = entries[name]
        if json:
            emit("entry", task=entry.task, text=entry.text(), **entry.model_dump(mode="json", exclude_unset=True))
        else:
            show_entry(entry, console())
        return
    if name not in known:
        raise SpecError(f"there is no profile {name}", hint=near_or_all(name, [*known, *entries]))
    one = known[name]
    if json:
        emit("profile", file=one.file, own=one.own, **one.profile.model_dump(mode="json", exclude_none=True))
    else:
        show_one(one, console())


@app.command()
def save(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="A model of the fleet; default: all.", autocompletion=completing.models),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the profile; default: box and model.")] = None,
    profiles: Annotated[
        Path | None,
        typer.Option("--profiles", metavar="DIR", help="Folder to write to; default: profiles beside fleet.yaml."),
    ] = None,
    fleet: FleetFile = DEFAULT_FLEET,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Save what `fleetctl tune` measured in this fleet as a file that can be shared: no box, no address, no path.

    One profile for each model on each kind of box. `fleetctl init` and `fleetctl tune` use it from then on.
    """
    from fleetctl.cli.output import console, emit, say
    from fleetctl.cli.session import open_fleet
    from fleetctl.errors import SpecError
    from fleetctl.profiles.folders import BESIDE, save_profile
    from fleetctl.profiles.saved import saved, understood
    from fleetctl.run.profiling import kept
    from fleetctl.spec.problems import near_or_all

    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config, partly=True) as subject:
        models = subject.fleet.models
        if model is not None and model not in models:
            raise SpecError(f"there is no model {model}", hint=near_or_all(model, models))
        every = kept(subject)
        known = [one for one in every if understood(one)]
        records = [one for one in known if model in (None, one["model"])]
        measured = {key: one.measured for key, one in models.items()}
    if len(known) < len(every):
        say(
            f"{len(every) - len(known)} of the kept measurements are damaged or of another form, and left out",
            as_json=json,
        )
    folder = profiles or fleet.resolve().parent / BESIDE
    for one in saved(records, measured, name=name):
        file = folder / f"{one.profile.profile}.yaml"
        for note in one.notes:
            say(note, as_json=json)
        save_profile(one.profile, file)
        if json:
            emit("saved", file=str(file), profile=one.profile.model_dump(mode="json", exclude_none=True))
        else:
            console().print(f"{file} is written; read it before you share it", markup=False)
