"""``fleetctl tune``: the concurrency at which copies do best, found by measuring them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
from fleetctl.cli.options import DEFAULT_FLEET, AcceptNew, Debug, FleetFile, Json, SshConfig, Via, Yes
from fleetctl.cli.output import say

if TYPE_CHECKING:
    from fleetctl.bench.endpoint import Endpoint
    from fleetctl.bench.knee import Point, Probe
    from fleetctl.bench.report import Told


def tune(
    name: Subject = None,
    mix: MixName = "chat",
    most: Annotated[int, typer.Option("--most", min=1, max=4096, help="Highest concurrency to measure.")] = 64,
    probes: Annotated[int, typer.Option("--probes", min=4, max=200, help="Measurements at most.")] = 24,
    duration: Annotated[
        str, typer.Option("--duration", help="How long each measurement takes, after a warm-up.")
    ] = "20s",
    against: Against = None,
    model: ModelName = None,
    api_key_env: ApiKeyEnv = None,
    shared_prefix: SharedPrefix = None,
    seed: Seed = 0,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a report with all numbers.")
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Set concurrency in fleet.yaml; shows it first.")] = False,
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    yes: Yes = False,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Find the knee: the concurrency beyond which throughput is flat or falls, and requests only wait longer.

    Each copy is measured directly and alone, one after the other. Nothing is changed on the boxes; with --write
    fleet.yaml gets the answer, and `fleetctl apply` brings it there.
    """
    from dataclasses import replace

    from fleetctl.bench.report import write_report
    from fleetctl.cli.output import console, emit
    from fleetctl.cli.session import open_fleet
    from fleetctl.cli.show_knee import event, show_knee
    from fleetctl.errors import SpecError

    seconds = time_of("--duration", duration, least=0.5)
    ways: dict[str, Any] = {"mix": mix_of(mix, shared_prefix), "model": model, "seed": seed, "json": json}
    ways |= {"most": most, "probes": probes, "duration": seconds}
    if against is not None:
        from fleetctl.bench.endpoint import parse_endpoint

        if name is not None or write:
            raise SpecError("--against names the endpoint: no model or engine of the fleet, and no --write")
        endpoint = parse_endpoint(against, key_of(api_key_env))
        found = [_tuned(endpoint, endpoint.url, **ways)]
    else:
        if write and via is not None:
            raise SpecError("--write is for the file of --fleet, and --via reads another", hint="leave --via out")
        from fleetctl.run.benching import reached, standing

        with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config, via=via, partly=True) as subject:
            there = standing(subject, name)
            models = sorted({engine.model for engine in there.engines})
            if len(models) > 1:
                raise SpecError(f"there are several models: {', '.join(models)}", hint="name one: fleetctl tune MODEL")
            agree(list(there.serving), yes=yes)
            found = []
            for engine in there.engines:
                with reached(subject, engine) as way:
                    say(f"{engine.id}, {way.told}", as_json=json)
                    own = replace(way.endpoint, api_key=key_of(api_key_env))
                    found.append(_tuned(own, engine.id, **{**ways, "model": model or engine.served_as[0]}))
    for told in found:
        if json:
            emit("tuned", **event(told))
        else:
            show_knee(told, console())
    if html is not None:
        write_report(html, found)
        if not json:
            console().print(f"{html} has all numbers.", markup=False)
    if write:
        boxes = [engine.head.box for engine in there.engines]
        _write(fleet, subject.text, there.release.layout or "", models[0], boxes, found, yes=yes, json=json)


def _tuned(
    endpoint: Endpoint,
    what: str,
    *,
    mix: Any,
    model: str | None,
    seed: int,
    most: int,
    probes: int,
    duration: float,
    json: bool,
) -> Told:
    from fleetctl.bench.knee import Range
    from fleetctl.bench.report import Told
    from fleetctl.bench.target import Bench
    from fleetctl.bench.tune import tune as search

    bench = Bench(endpoint, mix, model=model, seed=seed)
    for note in bench.met.notes:
        say(note, as_json=json)

    def hear(step: Probe, point: Point | None) -> None:
        _progress(what, step, point, json=json)

    tuned = search(bench, Range(most, probes), duration=duration, say=hear)
    return Told.now(what, bench.met.dialect.model, mix.name, tuned)


def _progress(what: str, step: Probe, point: Point | None, *, json: bool) -> None:
    from dataclasses import asdict

    from fleetctl.cli.output import console, emit

    if json:
        kind = "probe" if point is None else "point"
        emit(kind, engine=what, **(asdict(step) if point is None else asdict(point)))
    elif point is not None:
        told = f"{what}: {point.concurrency} at once: {point.throughput:.1f} tokens/s"
        told += f", first token after {point.ttft:.2f} s" if point.ttft is not None else ""
        console(error=True).print(f"{told} ({step.why})", markup=False)


def _write(
    file: Path, text: str, layout: str, model: str, boxes: list[str], found: list[Told], *, yes: bool, json: bool
) -> None:
    from fleetctl.cli.ask import confirm
    from fleetctl.cli.output import console, emit
    from fleetctl.cli.show_tune import difference, show_difference
    from fleetctl.errors import RefusedError
    from fleetctl.spec.edit import save, with_concurrency

    chosen = min(told.tuned.answer.concurrency for told in found)
    after = with_concurrency(text, layout, model, chosen, boxes, str(file))
    diff = difference(str(file), text, after, "tuned")
    if not json:
        show_difference(diff, console())
    if diff:
        if not yes and not confirm(f"Write this into {file}?"):
            raise RefusedError("not done; nothing was changed")
        save(file, text, after)
    if json:
        emit("written", file=str(file), layout=layout, model=model, concurrency=chosen, diff=diff)
    elif diff:
        console().print(f"{file} is written. `fleetctl apply` brings it to the engines, one at a time.", markup=False)
    else:
        console().print(f"{file} has it already.", markup=False)
