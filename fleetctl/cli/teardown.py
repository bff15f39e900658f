"""``fleetctl teardown``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fleetctl.cli import completing
from fleetctl.cli.options import DEFAULT_FLEET, AcceptNew, Debug, FleetFile, Json, SshConfig, TakeOver, Yes

if TYPE_CHECKING:
    from fleetctl.run.tearing_down import Part


def teardown(
    boxes: Annotated[
        list[str],
        typer.Argument(
            metavar="BOX…",
            help="Boxes of fleet.yaml, or [USER@]HOST without one.",
            autocompletion=completing.boxes,
        ),
    ],
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="PART", help="Leave a part there: key, sudo, packages, link, earlyoom, engine."),
    ] = None,
    fleet: FleetFile = DEFAULT_FLEET,
    yes: Yes = False,
    take_over: TakeOver = False,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Give boxes back as they were before setup and fleetctl. What others have changed since is left, and said.

    A box that serves is refused unless it is drained; all boxes of a fleet together leave their layout first.
    """
    from fleetctl.cli.mover import Mover
    from fleetctl.cli.output import console, emit, say
    from fleetctl.cli.session import playbooks
    from fleetctl.cli.setup_session import open_boxes, wanted_families
    from fleetctl.errors import RefusedError
    from fleetctl.facts.types import unfinished
    from fleetctl.plan.types import Plan
    from fleetctl.run.planning import Look, look
    from fleetctl.run.tearing_down import forget, parts_on, plan_teardown, refuse_serving, serving, whole_fleet

    kept = wanted_families(keep, "--keep")
    with open_boxes(boxes, fleet, accept_new=accept_new, ssh_config=ssh_config) as (subject, names):
        seen = look(subject)
        if unfinished(seen.observed) is None and serving(subject, seen, names) and whole_fleet(subject, names):
            say("the fleet leaves its layout first, for what ran before fleetctl", as_json=json)
            Mover(subject, as_json=json, yes=yes, take_over=take_over).rollback(0, playbooks(), undo=False)
        elif unfinished(seen.observed) is None:
            refuse_serving(subject, seen, names)
        chosen = _chosen(parts_on(subject, names), kept, yes=yes, json=json)
        asked = {(part.box, part.name) for part in chosen}

        def make(seen: Look) -> Plan:
            left = [part for part in parts_on(subject, names) if (part.box, part.name) in asked]
            return plan_teardown(subject, seen, names, left)

        Mover(subject, as_json=json, yes=yes, take_over=take_over).work("teardown", make)
        staying = {part.box for part in parts_on(subject, names)}
        if unfinished(look(subject).observed) is not None:
            raise RefusedError("a change is under way: nothing more was taken off", hint="fleetctl status")
        gone = [name for name in names if name not in staying]
        forget(subject, gone, lambda text: say(text, as_json=json))
        if json:
            emit("teardown", boxes=names, gone=gone, kept=sorted(staying))
        else:
            for name in names:
                word = "what was kept is recorded there" if name in staying else "nothing of fleetctl is left there"
                console().print(f"{name}: {word}", markup=False)


def _chosen(parts: list[Part], kept: frozenset[str], *, yes: bool, json: bool) -> list[Part]:
    """The parts that are to go: each is shown and asked for."""
    from fleetctl.cli.ask import confirm
    from fleetctl.cli.output import console
    from fleetctl.cli.setup_session import family_of

    chosen = []
    for part in parts:
        if family_of(part.name) in kept:
            continue
        first, *more = part.lines()
        if not json:
            console().print(first, style="bold", markup=False)
            for line in more:
                console().print(f"    {line}", markup=False)
        if yes or confirm(f"Take {part.name} off {part.box}?"):
            chosen.append(part)
    return chosen
