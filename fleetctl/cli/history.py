"""``fleetctl history``."""

from __future__ import annotations

from typing import Annotated

import typer

from fleetctl.cli.options import DEFAULT_FLEET, AcceptNew, Debug, FleetFile, Json, SshConfig, Via

_EVERY = 5000  # more than a box remembers


def history(
    move: Annotated[
        str | None,
        typer.Argument(metavar="[MOVE]", help="Show the steps of this move: its name, or how that begins or ends."),
    ] = None,
    last: Annotated[int, typer.Option("-n", "--last", min=1, max=_EVERY, help="How many changes.")] = 20,
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Show every change of the fleet: who, when, from where to where, how it ended; what guards did too.

    Exit status 3 when a box cannot tell what it remembers.
    """
    from dataclasses import asdict

    from fleetctl.cli.output import console, emit, say
    from fleetctl.cli.session import QUICK, open_fleet
    from fleetctl.cli.show_gates import show_gate_failures
    from fleetctl.cli.show_history import show_generations, show_history, show_steps
    from fleetctl.errors import BoxError, SpecError, reason
    from fleetctl.facts.history import gather_history, read_gate_failures, read_move
    from fleetctl.remote.errors import SeveralBoxesError
    from fleetctl.run.history import changes, find, steps_of

    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config, via=via, partly=True, reach=QUICK) as subject:
        told, failed = gather_history(subject.boxes, last if move is None else _EVERY)
        away = {**subject.unreachable, **failed}
        if not told:
            raise SeveralBoxesError(away)
        lead = told.get(subject.fleet.proxy.lead) or max(told.values(), key=lambda facts: facts.current or 0)
        if move is not None:
            names = find(told, move)
            if len(names) != 1:
                those = f"{len(names)} begin or end so: {', '.join(names[-5:])}"
                near = those if names else "`fleetctl history` names those that they do"
                raise SpecError(f"{move} names no one move" if names else f"no box remembers a move {move}", hint=near)
            (change,) = (one for one in changes(told, _EVERY) if one.move == names[0])
            read = read_move(subject.boxes, names[0])
            failures = read_gate_failures(subject.boxes[read[0]], names[0]) if read else []
    out = console()
    if move is not None:
        box, steps = (read[0], steps_of(read[1])) if read else ("", [])
        if json:
            emit("change", **asdict(change))
            for step in steps:
                emit("step", **asdict(step))
            for failure in failures:
                emit("gate", box=box, **failure.model_dump(mode="json"))
        elif read:
            show_steps(change, box, steps, out)
            show_gate_failures(box, failures, out)
        else:
            show_history([change], out)
            out.print("its steps are not kept any more: of older moves one line stays")
    else:
        found = changes(told, last)
        if json:
            for one in found:
                emit("change", **asdict(one), generation_kept=one.generation in lead.generations)
            kept = {number: generation.layout for number, generation in lead.generations.items()}
            emit("generations", kept=kept, current=lead.current)
        else:
            show_history(found, out)
            show_generations(lead.generations, lead.current, out)
    if away:
        for name, error in away.items():
            say(f"{name} cannot tell what it remembers: {reason(name, error)}", as_json=json)
        raise typer.Exit(BoxError.exit_code)
