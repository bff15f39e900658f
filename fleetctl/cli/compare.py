"""``fleetctl compare``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fleetctl.cli import completing
from fleetctl.cli.options import DEFAULT_FLEET, AcceptNew, Debug, FleetFile, Json, SshConfig, TakeOver, Yes


def compare(
    one: Annotated[
        str, typer.Argument(metavar="LAYOUT", help="A layout of the fleet.", autocompletion=completing.layouts)
    ],
    other: Annotated[
        str, typer.Argument(metavar="LAYOUT", help="The layout beside it.", autocompletion=completing.layouts)
    ],
    mix: Annotated[
        str | None,
        typer.Option("--mix", metavar="NAME|FILE", help="What requests are like: chat, agent, email, embeddings."),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", "-c", min=1, max=100_000, help="Clients with one request each.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.001, max=1e6, help="Requests a second, whatever answers take.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Seed of lengths and arrivals.")] = None,
    shared_prefix: Annotated[
        int | None, typer.Option("--shared-prefix", min=0, help="Tokens that all prompts begin with.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="TIMES", help="What a good answer keeps to: ttft=2s,tpot=100ms.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Model of the fleet, where both serve several.", autocompletion=completing.models),
    ] = None,
    run: Annotated[
        bool, typer.Option("--run", help="Measure both now: load, a move there, load, and back. Shown and asked first.")
    ] = False,
    duration: Annotated[str, typer.Option("--duration", help="With --run: how long is measured.")] = "30s",
    warm_up: Annotated[str, typer.Option("--warm-up", help="With --run: load before that.")] = "5s",
    fleet: FleetFile = DEFAULT_FLEET,
    yes: Yes = False,
    take_over: TakeOver = False,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Compare two layouts: throughput, latency, cache room, the gap between them, what a box's restart takes.

    What they measured is read from the loads that `fleetctl bench --through-proxy` has kept. With --run both are
    measured now; the fleet ends in the layout where it began, also after a failure and Ctrl-C.
    """
    from fleetctl.bench.stored import Wanted, goal_of, load_of
    from fleetctl.bench.summary import parse_target
    from fleetctl.cli.bench import mix_of, time_of
    from fleetctl.cli.output import console, emit
    from fleetctl.cli.session import open_fleet, playbooks
    from fleetctl.cli.show_compare import event, show_comparison
    from fleetctl.errors import SpecError
    from fleetctl.run.comparing import compare as compared
    from fleetctl.run.comparing import layouts_of
    from fleetctl.run.layout_load import Wish

    if concurrency is not None and rate is not None:
        raise SpecError("--concurrency and --rate are two ways to send load: give one of them")
    goal = parse_target(target) if target else None
    kind = mix_of(mix or "chat", shared_prefix)
    ways: dict[str, Any] = {"accept_new": accept_new, "ssh_config": ssh_config}
    with open_fleet(fleet, **ways) as subject:
        layouts, name = layouts_of(subject, (one, other), model)
        wish = Wish(
            model=name,
            mix=kind,
            clients=None if rate is not None else concurrency or 8,
            rate=rate,
            seed=seed or 0,
            duration=time_of("--duration", duration, least=0.1),
            warm_up=time_of("--warm-up", warm_up),
            target=goal,
        )
        if run:
            from fleetctl.cli.comparing import measure_both

            saw = measure_both(subject, layouts, wish, playbooks(), json=json, yes=yes, take_over=take_over)
            found, _ = compared(subject, layouts, wish.wanted, wish, playbooks())
        else:
            told = mix is not None or shared_prefix is not None
            wanted = Wanted(
                model=name,
                mix=kind.name if told else None,
                digest=load_of(name, kind, seed=0, stream=True).digest if told else None,
                seed=seed,
                clients=concurrency,
                rate=rate,
                target=goal_of(goal),
            )
            saw = {}
            found, _ = compared(subject, layouts, wanted, wish, playbooks())
    if json:
        emit("comparison", **event(found, saw))
    else:
        show_comparison(found, saw, console())
