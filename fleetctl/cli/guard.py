"""``fleetctl guard``: the small service on every box that keeps memory from running out and restarts what hangs."""

from __future__ import annotations

from typing import Annotated

import typer

from fleetctl.cli.options import (
    DEFAULT_FLEET,
    AcceptNew,
    Debug,
    FleetFile,
    Json,
    SshConfig,
    TakeOver,
    Via,
    Yes,
)

app = typer.Typer(no_args_is_help=True, help="The guard on the boxes: memory that runs short, engines that hang.")

_WRITE = "write `guard: {}` at the end of fleet.yaml (every key has a default: docs/guard.md)"
_TAKE_OUT = "take guard: out of fleet.yaml"


@app.callback()
def _guard() -> None:
    pass


@app.command()
def install(
    fleet: FleetFile = DEFAULT_FLEET,
    yes: Yes = False,
    take_over: TakeOver = False,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Put the guard on every box that has an engine. The same as apply, where fleet.yaml has guard:."""
    _apply(fleet, wanted=True, yes=yes, take_over=take_over, json=json, accept_new=accept_new, ssh_config=ssh_config)


@app.command()
def remove(
    fleet: FleetFile = DEFAULT_FLEET,
    yes: Yes = False,
    take_over: TakeOver = False,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Take the guard off all boxes. The same as apply, once guard: is out of fleet.yaml."""
    _apply(fleet, wanted=False, yes=yes, take_over=take_over, json=json, accept_new=accept_new, ssh_config=ssh_config)


def _apply(
    fleet: FleetFile,
    *,
    wanted: bool,
    yes: bool,
    take_over: bool,
    json: bool,
    accept_new: bool,
    ssh_config: SshConfig,
) -> None:
    from fleetctl.cli.apply import apply
    from fleetctl.errors import SpecError
    from fleetctl.spec.load import load_fleet

    has = load_fleet(fleet).fleet.guard is not None
    if has != wanted:
        # The file says what the boxes are to be like; a command that says otherwise would be undone by the next apply.
        said = "does not want a guard" if wanted else "wants a guard"
        raise SpecError(f"{fleet} {said}; nothing was changed", hint=f"{_WRITE if wanted else _TAKE_OUT}, then again")
    apply(fleet=fleet, yes=yes, take_over=take_over, json=json, accept_new=accept_new, ssh_config=ssh_config)


@app.command()
def status(
    fleet: FleetFile = DEFAULT_FLEET,
    via: Via = None,
    events: Annotated[int, typer.Option("--events", min=0, max=1000, help="How many of its last events.")] = 10,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Say for every box what its guard sees and what it did lately.

    Exit status 9 when a guard does not run, has something out of the proxy, or is not alone.
    """
    from fleetctl.cli.output import console, emit
    from fleetctl.cli.session import open_fleet
    from fleetctl.errors import UnhealthyError
    from fleetctl.facts.guards import gather_guards, guard_problems, told

    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config, via=via) as subject:
        guards = gather_guards(subject.boxes, events)
    wanted = subject.fleet.guard is not None
    problems = [problem for name, facts in guards.items() for problem in guard_problems(name, facts, wanted=wanted)]
    if json:
        emit("guards", boxes={name: facts.model_dump() for name, facts in guards.items()}, problems=problems)
    else:
        out = console()
        for name, facts in guards.items():
            out.print(f"{name}: {told(facts)}", markup=False)
            for event in facts.events:
                out.print(f"  {event}", markup=False)
        for problem in problems:
            out.print("[yellow]problem:[/] ", end="")
            out.print(problem, markup=False)
    if problems:
        raise typer.Exit(UnhealthyError.exit_code)
