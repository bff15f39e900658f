"""``fleetctl apply``."""

from __future__ import annotations

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


def apply(
    fleet: FleetFile = DEFAULT_FLEET,
    playbook: PlaybookFile = None,
    yes: Yes = False,
    take_over: TakeOver = False,
    json: Json = False,
    accept_new: AcceptNew = False,
    ssh_config: SshConfig = None,
    debug: Debug = False,
) -> None:
    """Bring changed settings and secrets of the live layout to the boxes, one copy at a time.

    A split, or a model with a single copy, cannot change that way: requests are held meanwhile, as in a cutover.
    """
    from fleetctl.cli.mover import Mover
    from fleetctl.cli.session import open_fleet, playbooks
    from fleetctl.plan.types import Plan
    from fleetctl.run.planning import Look, wanted_release
    from fleetctl.run.rolling import layout_to_apply, plan_apply

    books = playbooks(playbook)
    with open_fleet(fleet, accept_new=accept_new, ssh_config=ssh_config) as subject:
        mover = Mover(subject, as_json=json, yes=yes, take_over=take_over)

        def make(seen: Look) -> Plan:
            wanted = wanted_release(subject, layout_to_apply(subject, seen.observed))
            return plan_apply(subject, wanted, mover.look(wanted), books)

        mover.work("apply", make)
