"""``fleetctl upgrade``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fleetctl.cli import completing
from fleetctl.cli.options import (
    DEFAULT_FLEET,
    AcceptNew,
    Debug,
    FleetFile,
    Json,
    PlaybookFile,
    SshConfig,
    TakeOver,
    Yes,
)

if TYPE_CHECKING:
    from pathlib import Path

    from fleetctl.run.subject import Subject


def upgrade(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Model whose engines get another build.", autocompletion=completing.models
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="BUILD",
            help="Name under builds: in fleet.yaml, a path, or an image.",
            autocompletion=completing.builds,
        ),
    ],
    fleet: FleetFile = DEFAULT_FLEET,
    playbook: PlaybookFile = None,
    yes: Yes = False,
    take_over: TakeOver = False,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Bring another build of its engine to a model, one copy at a time, each proved before it takes requests.

    fleet.yaml is changed when the fleet runs it, and not before. Where a copy fails, all have the old build again.
    """
    from fleetctl.cli.mover import Mover
    from fleetctl.cli.session import open_fleet, playbooks
    from fleetctl.plan.types import Plan
    from fleetctl.run.planning import Look, wanted_release
    from fleetctl.run.rolling import layout_to_apply
    from fleetctl.run.upgrading import has_build, plan_upgrade, upgraded
    from fleetctl.spec.edit import refuse_unwritable

    books = playbooks(playbook)
    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config) as before:
        after = upgraded(before, model, to, str(fleet))
        if after.text != before.text:
            refuse_unwritable(fleet)
        _show_file(fleet, before, after, json=json)
        mover = Mover(after, as_json=json, yes=yes, take_over=take_over)

        def make(seen: Look) -> Plan:
            wanted = wanted_release(after, layout_to_apply(after, seen.observed))
            return plan_upgrade(before, after, mover.look(wanted), books)

        done = mover.work("upgrade", make, same=lambda plan: has_build(plan, after, model))
        _write_file(fleet, before, after, json=json, ask=done is None and not yes)


def _show_file(file: Path, before: Subject, after: Subject, *, json: bool) -> None:
    """The line of fleet.yaml that changes, before the plan."""
    from fleetctl.cli.output import console, emit
    from fleetctl.cli.show_tune import difference, show_difference

    diff = difference(str(file), before.text, after.text, "launch")
    if json:
        emit("file", file=str(file), diff=diff)
    else:
        show_difference(diff, console())


def _write_file(file: Path, before: Subject, after: Subject, *, json: bool, ask: bool) -> None:
    """fleet.yaml says what the fleet runs now. ``ask``: nothing had to be done on the boxes, and nobody was asked."""
    from fleetctl.cli.ask import confirm
    from fleetctl.cli.output import console, emit
    from fleetctl.errors import RefusedError, SpecError
    from fleetctl.spec.edit import save

    changes = before.text != after.text
    if changes and ask and not confirm(f"Write this into {file}?"):
        raise RefusedError("not done; the file was not changed")
    if changes:
        try:
            save(file, before.text, after.text)
        except SpecError as error:
            raise SpecError(
                f"the fleet runs the new build, and fleet.yaml does not say so: {error.message}",
                hint="run the same command again: no engine starts for that",
            ) from error
    if json:
        emit("written", file=str(file), changed=changes)
    else:
        console().print(f"{file} {'is written' if changes else 'says so already'}.", markup=False)
