"""``fleetctl bench``: load on an engine, on the proxy, or on any endpoint of the OpenAI API."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from fleetctl.cli import completing
from fleetctl.cli.options import DEFAULT_FLEET, AcceptNew, Debug, FleetFile, Json, SshConfig, Via, Yes
from fleetctl.cli.output import say
from fleetctl.cli.shortened import Shortened

if TYPE_CHECKING:
    from fleetctl.bench.endpoint import Endpoint
    from fleetctl.bench.mix import Mix
    from fleetctl.run.benching import Standing
    from fleetctl.run.subject import Subject as FleetSubject


class UnderTest(NamedTuple):
    """What is measured, its name and the model to ask it for (None: the first that it serves).

    ``subject`` and ``standing`` are there where it is the live layout as a whole.
    """

    endpoint: Endpoint
    what: str
    served_as: str | None = None
    subject: FleetSubject | None = None
    standing: Standing | None = None


THROUGH_PROXY = "proxy"
"""What is measured, where it is the layout as a whole."""


class _Load(Shortened):
    usual = "load"


app = typer.Typer(cls=_Load, help="Send load to an engine and measure what comes back.")

MixName = Annotated[
    str, typer.Option("--mix", metavar="NAME|FILE", help="What requests are like: chat, agent, email, embeddings.")
]
Against = Annotated[
    str | None, typer.Option("--against", metavar="URL", help="An endpoint of the OpenAI API; no fleet is needed.")
]
ModelName = Annotated[str | None, typer.Option("--model", help="Model to ask for; default: the first that is served.")]
ApiKeyEnv = Annotated[
    str | None, typer.Option("--api-key-env", metavar="NAME", help="Environment variable with the endpoint's API key.")
]
SharedPrefix = Annotated[
    int | None, typer.Option("--shared-prefix", min=0, help="Tokens that all prompts begin with; default: the mix's.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Lengths and arrivals are the same for the same number.")]
Subject = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL|ENGINE]", help="A model, engine or box of the fleet.", autocompletion=completing.subjects
    ),
]


@app.command("load")
def bench(
    name: Subject = None,
    mix: MixName = "chat",
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", "-c", min=1, max=100_000, help="Clients with one request each at once."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.001, max=1e6, help="Requests a second, whatever answers take.")
    ] = None,
    replay: Annotated[
        Path | None, typer.Option("--replay", metavar="FILE", help="Send what `fleetctl bench record` recorded.")
    ] = None,
    faster: Annotated[float, typer.Option("--faster", min=0.001, max=1e4, help="Speed of the replay.")] = 1.0,
    duration: Annotated[str, typer.Option("--duration", help="How long is measured: 30s, 5m.")] = "30s",
    warm_up: Annotated[str, typer.Option("--warm-up", help="Load before that, which does not count.")] = "5s",
    target: Annotated[
        str | None, typer.Option("--target", metavar="TIMES", help="What a good answer keeps to: ttft=2s,tpot=100ms.")
    ] = None,
    against: Against = None,
    proxy: Annotated[bool, typer.Option("--through-proxy", help="Send it to the proxy, as clients do.")] = False,
    model: ModelName = None,
    api_key_env: ApiKeyEnv = None,
    shared_prefix: SharedPrefix = None,
    seed: Seed = 0,
    timeout: Annotated[str, typer.Option("--timeout", help="Longest wait for a whole answer.")] = "10m",
    whole: Annotated[bool, typer.Option("--whole", help="Answers in one piece, not streamed.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Write all figures to this file, as JSON.")] = None,
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    yes: Yes = False,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Send load and measure it: time to first token, time per token, tokens a second, requests a minute, errors.

    With --concurrency so many clients each ask again as soon as they are answered (default: 8). With --rate requests
    come at random times however slow answers are, and latency counts from when each should have been sent. The word
    `load` may be left out.
    """
    import json as json_module

    from fleetctl.bench.replay import read_recording, replayed
    from fleetctl.bench.summary import parse_target
    from fleetctl.bench.target import Bench
    from fleetctl.cli.output import console, emit
    from fleetctl.cli.show_bench import event, show_bench
    from fleetctl.errors import SpecError

    if sum(choice is not None for choice in (concurrency, rate, replay)) > 1:
        raise SpecError("--concurrency, --rate and --replay are three ways to send load: give one of them")
    seconds = time_of("--duration", duration, least=0.1)
    before = time_of("--warm-up", warm_up)
    goal = parse_target(target) if target else None
    recording = read_recording(replay) if replay else None
    kind = mix_of(mix, shared_prefix)
    ways: dict[str, Any] = {"fleet": fleet, "via": via, "accept_new": accept_new, "ssh_config": ssh_config}
    with endpoint_of(name, against, api_key_env, proxy=proxy, yes=yes, json=json, task=kind.task, **ways) as tested:
        under_test = Bench(
            tested.endpoint,
            kind,
            model=model or tested.served_as,
            seed=seed,
            timeout=time_of("--timeout", timeout, least=0.1),
            stream=not whole,
            gauges=not proxy and tested.what != THROUGH_PROXY,
        )
        for note in under_test.met.notes:
            say(note, as_json=json)
        if recording is not None:
            arrivals = replayed(recording, under_test.prompts, faster)
            measured = under_test.arriving(arrivals, warm_up=0, duration=recording.seconds / faster, target=goal)
        elif rate is not None:
            measured = under_test.open(rate, warm_up=before, duration=seconds, target=goal)
        else:
            measured = under_test.closed(concurrency or 8, warm_up=before, duration=seconds, target=goal)
        if tested.standing is not None and tested.subject is not None:
            from fleetctl.run.layout_load import keep_load

            load: dict[str, Any] = {"seed": seed, "stream": not whole, "rate": rate}
            load |= {"recording": recording, "faster": faster}
            load |= {"clients": concurrency or 8 if rate is None and recording is None else None}
            asked = (kind, under_test.met.dialect.model)
            kept = keep_load(tested.subject, tested.standing, *asked, load, measured.summary, goal, before)
            say(kept, as_json=json)
    told = event(
        measured,
        what=tested.what,
        mix=kind.name if recording is None else str(replay),
        model=under_test.met.dialect.model,
    )
    if json:
        emit("bench", **told)
    else:
        show_bench(told, console())
    if out is not None:
        out.write_text(json_module.dumps(told, indent=1) + "\n")


@app.command()
def record(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.")],
    since: Annotated[str, typer.Option("--since", metavar="PERIOD", help="How far back: 1h, 90m, 1d.")] = "1h",
    model: Annotated[
        str | None,
        typer.Option("--model", help="Only requests of this model of the fleet.", autocompletion=completing.models),
    ] = None,
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Record what clients sent, from the proxy's log: when, and how long answers were. Nothing of what they said.

    The log has neither prompts nor their lengths: a replay takes those from a mix.
    """
    from fleetctl.bench.replay import write_recording
    from fleetctl.cli.output import console, emit
    from fleetctl.cli.session import open_fleet
    from fleetctl.errors import SpecError
    from fleetctl.run.recording import record as recorded
    from fleetctl.spec.units import parse_period, seconds

    try:
        period = parse_period(since)
    except ValueError as error:
        raise SpecError(f"--since {since}: {error}") from error
    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config, via=via, partly=True) as subject:
        recording = recorded(subject, period, model)
    write_recording(file, recording)
    if json:
        emit("recorded", file=str(file), requests=len(recording.arrivals), seconds=recording.seconds)
    else:
        told = f"{file}: {len(recording.arrivals)} requests of {seconds(recording.seconds)}; "
        console().print(f"{told}`fleetctl bench --replay {file}` sends the like", markup=False)


def time_of(option: str, text: str, *, least: float = 0.0) -> float:
    """An option's time in seconds. Raises SpecError."""
    from fleetctl.errors import SpecError
    from fleetctl.spec.units import parse_duration

    try:
        value = parse_duration(text)
        if value < least:
            raise ValueError(f"it is at least {least:g} s")
    except ValueError as error:
        raise SpecError(f"{option} {text}: {error}") from None
    return value


def mix_of(name: str, shared: int | None) -> Mix:
    """The mix of that name, with so many tokens shared where that is said."""
    from fleetctl.bench.mix import load_mix

    mix = load_mix(name)
    return mix if shared is None else mix.model_copy(update={"shared": shared})


def key_of(variable: str | None) -> str | None:
    """The API key in an environment variable. Raises SpecError when it is not set."""
    from fleetctl.spec.secret import Secret

    return None if variable is None else Secret(env=variable).read()


@contextlib.contextmanager
def endpoint_of(
    name: str | None,
    against: str | None,
    api_key_env: str | None,
    *,
    proxy: bool,
    yes: bool,
    json: bool,
    fleet: Path,
    via: str | None,
    accept_new: bool,
    ssh_config: Path | None,
    task: str = "generate",
) -> Iterator[UnderTest]:
    """What is to be measured. An engine that serves is loaded only when the operator agrees.

    A model of a pool is measured through the proxy and the queue, as clients reach it: on no box alone.
    """
    from dataclasses import replace

    from fleetctl.errors import SpecError

    if against is not None:
        from fleetctl.bench.endpoint import parse_endpoint

        if name is not None or proxy:
            raise SpecError("--against names the endpoint: no model or engine of the fleet, and no --through-proxy")
        endpoint = parse_endpoint(against, key_of(api_key_env))
        yield UnderTest(endpoint, endpoint.url)
        return
    from fleetctl.cli.session import open_fleet
    from fleetctl.run.benching import reached, standing, through_proxy

    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config, via=via, partly=True) as subject:
        found = standing(subject, name, task)
        models = {one.model for one in found.pooled}
        if name is not None and models and name not in models:
            raise SpecError(
                f"{name}: requests for models of the pool wait in one queue, and any box takes them",
                hint=f"name a model: fleetctl bench {min(models)}",
            )
        agree(list(found.serving), yes=yes)
        if proxy or (len(models) == 1 and len(found.pooled) == len(found.engines)):
            way = through_proxy(subject, found)
            say(way.told, as_json=json)
            yield UnderTest(way.endpoint, THROUGH_PROXY, found.engines[0].served_as[0], subject, found)
            return
        if len(found.engines) > 1:
            names = ", ".join(dict.fromkeys(e.model if e.model in models else e.id for e in found.engines))
            raise SpecError(f"there are several: {names}", hint="name one, or take --through-proxy for all of them")
        with reached(subject, found.engines[0]) as way:
            say(f"{found.engines[0].id}, {way.told}", as_json=json)
            endpoint = replace(way.endpoint, api_key=key_of(api_key_env))
            yield UnderTest(endpoint, found.engines[0].id, found.engines[0].served_as[0])


def agree(serving: list[str], *, yes: bool) -> None:
    """Ask before engines that serve clients get load as well. Raises RefusedError when the answer is no."""
    from fleetctl.cli.ask import confirm
    from fleetctl.errors import RefusedError

    if not serving or yes:
        return
    them = "it" if len(serving) == 1 else "them"
    told = f"{', '.join(serving)}: clients use {them} now, and their requests will wait longer. "
    if not confirm(f"{told}(`fleetctl drain BOX` takes a copy out first.) Send load to {them}?"):
        raise RefusedError("not done; nothing was sent")
