"""``fleetctl proxy tune``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fleetctl.cli.options import DEFAULT_FLEET, AcceptNew, Debug, FleetFile, Json, SshConfig, Yes

if TYPE_CHECKING:
    from pathlib import Path

    from fleetctl.proxy.tune.advice import Advice


def tune(
    fleet: FleetFile = DEFAULT_FLEET,
    since: Annotated[
        str, typer.Option("--since", metavar="PERIOD", help="How far back to read the proxy's log: 7d, 12h, 90m.")
    ] = "7d",
    write: Annotated[
        bool, typer.Option("--write", help="Put what is advised into fleet.yaml; shows it first.")
    ] = False,
    yes: Yes = False,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Say what the proxy's settings should be, from what the fleet has measured, and why. No box is changed."""
    from fleetctl.cli.output import console, emit
    from fleetctl.cli.session import open_fleet
    from fleetctl.cli.show_tune import event, show_tune, summary
    from fleetctl.errors import SpecError
    from fleetctl.proxy.tune.tune import tune as tuned
    from fleetctl.run.tuning import gather_figures
    from fleetctl.spec.units import parse_period

    try:
        period = parse_period(since)
    except ValueError as error:
        raise SpecError(f"--since {since} is no stretch of time: {error}") from error
    if not period:
        raise SpecError("--since 0 leaves nothing to look at: write like 7d, 12h or 90m")
    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config, partly=True) as subject:
        found = gather_figures(subject, period)
    advices = tuned(found.measured)
    if json:
        emit("measured", layout=found.layout, since=period, **summary(found.measured))
        for advice in advices:
            emit("advice", **event(advice))
        for note in found.notes:
            emit("note", text=note)
    else:
        show_tune(found, advices, period, console())
    if write:
        _write(fleet, subject.text, advices, yes=yes, json=json)
    elif not json and any(advice.changes for advice in advices):
        console().print(f"`fleetctl proxy tune --write` puts this into {fleet}.", markup=False)


def _write(file: Path, text: str, advices: list[Advice], *, yes: bool, json: bool) -> None:
    from fleetctl.cli.ask import confirm
    from fleetctl.cli.output import console, emit
    from fleetctl.cli.show_tune import difference, show_difference
    from fleetctl.errors import RefusedError
    from fleetctl.spec.edit import save, with_proxy_settings

    changes = {advice.setting: advice.advised for advice in advices if advice.changes and advice.advised is not None}
    if not changes:
        if json:
            emit("written", file=str(file), settings={}, diff="")
        else:
            console().print(f"{file} stays as it is.", markup=False)
        return
    after = with_proxy_settings(text, changes, str(file))
    diff = difference(str(file), text, after)
    if not json:
        show_difference(diff, console())
    if not yes and not confirm(f"Write this into {file}?"):
        raise RefusedError("not done; nothing was changed")
    save(file, text, after)
    if json:
        emit("written", file=str(file), settings=changes, diff=diff)
    else:
        told = f"{file} is written. `fleetctl apply` brings it to the proxy, which reloads and cuts nothing off."
        console().print(told, markup=False)
