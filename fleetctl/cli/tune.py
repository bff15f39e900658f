"""``fleetctl tune``: the concurrency and the settings with which copies do best, found by measuring them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fleetctl.bench import MOST_PROBES
from fleetctl.cli.bench import (
    Against,
    ApiKeyEnv,
    MixName,
    ModelName,
    Seed,
    SharedPrefix,
    Subject,
    agree,
    key_of,
    mix_of,
    time_of,
)
from fleetctl.cli.options import (
    DEFAULT_FLEET,
    AcceptNew,
    Debug,
    FleetFile,
    Json,
    Profiles,
    SshConfig,
    TakeOver,
    Via,
    Yes,
)


def tune(
    name: Subject = None,
    mix: MixName = "chat",
    most: Annotated[int, typer.Option("--most", min=1, max=4096, help="Highest concurrency to measure.")] = 64,
    probes: Annotated[int, typer.Option("--probes", min=4, max=200, help="Measurements at most.")] = MOST_PROBES,
    duration: Annotated[
        str, typer.Option("--duration", help="How long each measurement takes, after a warm-up.")
    ] = "20s",
    drain: Annotated[
        bool, typer.Option("--drain", help="Take each copy out of the proxy while it is measured, and put it back.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--settings",
            metavar="NAME=VALUES",
            help="Start a copy with these values in turn: batched_tokens=2048,4096, speculative_tokens=2,4, "
            "memory_share=0.74,0.78.",
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", min=3, max=50, help="With --settings: measurements of each start.")
    ] = 4,
    hold: Annotated[
        bool, typer.Option("--hold", help="Also when nobody else serves the model: its requests wait in the proxy.")
    ] = False,
    against: Against = None,
    model: ModelName = None,
    api_key_env: ApiKeyEnv = None,
    shared_prefix: SharedPrefix = None,
    seed: Seed = 0,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a report with all numbers.")
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Set what was found in fleet.yaml; shows it first.")] = False,
    profiles: Profiles = None,
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    yes: Yes = False,
    take_over: TakeOver = False,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Find the knee: the concurrency beyond which throughput is flat or falls, and requests only wait longer.

    Each copy is measured directly and alone, one after the other. With --settings a copy is started with each value
    outside of the proxy while the others serve, measured, and brought back as it was. fleet.yaml changes with --write
    only, and `fleetctl apply` brings it to the boxes.
    """
    from fleetctl.bench.asked import Asked
    from fleetctl.bench.report import Told, Tried, write_report
    from fleetctl.cli import show_knee, show_settings, tuning
    from fleetctl.cli.output import console, emit
    from fleetctl.cli.session import open_fleet
    from fleetctl.cli.writing_tuned import write_concurrency, write_settings
    from fleetctl.errors import SpecError
    from fleetctl.profiles.folders import known_profiles, own_folders
    from fleetctl.run.benching import refuse_pooled, standing
    from fleetctl.run.measuring import Wanted, parse_settings

    wanted = Wanted(parse_settings(settings or ()), repeats)
    if hold and not drain and not settings:
        raise SpecError("--hold says nothing here: no copy is taken out", hint="it is for --drain and --settings")
    key_of(api_key_env)
    asked = Asked(
        mix=mix_of(mix, shared_prefix),
        model=model,
        seed=seed,
        duration=time_of("--duration", duration, least=0.5),
        key_variable=api_key_env,
    )
    known = known_profiles(own_folders(profiles, fleet if via is None else None))
    ways = tuning.Ways(asked, most, probes, json, yes, take_over, hold, known)
    found: list[Told] = []
    tried: list[Tried] = []

    def show(told: Told) -> None:
        found.append(told)
        if json:
            emit("tuned", **show_knee.event(told))
        else:
            show_knee.show_knee(told, console())

    if against is not None:
        from fleetctl.bench.endpoint import parse_endpoint

        if name is not None or write or drain or settings:
            why = "no model or engine of the fleet, and no --write, --drain or --settings"
            raise SpecError(f"--against names the endpoint: {why}")
        endpoint = parse_endpoint(against)
        show(tuning.endpoint_knee(endpoint, endpoint.url, ways)[0])
    else:
        tuning.file_for_writing(fleet, via, write)
        moves = drain or bool(settings)
        with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config, via=via, partly=not moves) as subject:
            there = standing(subject, name)
            refuse_pooled(
                there,
                "its worker measures how much its engines take at once, and no request goes past the queue",
                "`fleetctl bench MODEL -c CLIENTS` measures the pool; concurrency: of the placement bounds an engine",
            )
            chosen = tuning.one_model(there)
            if settings:
                for one in tuning.settings_tried(subject, there, ways, wanted):
                    tried.append(one)
                    if json:
                        emit("settings", **show_settings.event(one))
                    else:
                        show_settings.show_settings(one, console())
            else:
                if not drain:
                    agree(list(there.serving), yes=yes)
                for told in (tuning.knees_drained if drain else tuning.knees_in_place)(subject, there, ways):
                    show(told)
    if html is not None:
        write_report(html, found, tried)
        if not json:
            console().print(f"{html} has all numbers.", markup=False)
    if write:
        boxes = [engine.head.box for engine in there.engines]
        place = (fleet, subject.text, there.release.layout or "", chosen, boxes)
        if settings:
            write_settings(*place, tried, yes=yes, json=json)
        else:
            write_concurrency(*place, found, yes=yes, json=json)
