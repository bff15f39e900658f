"""Opening the fleet for a command: file, connections, passwords."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleetctl.errors import RefusedError, SpecError

if TYPE_CHECKING:
    from fleetctl.remote.connection import BoxConnection
    from fleetctl.run.planning import Books
    from fleetctl.run.subject import Subject
    from fleetctl.spec.fleet import Fleet


QUICK = 3.0  # seconds for a box to be reached by a command that goes on without it


@contextmanager
def open_fleet(
    path: Path,
    *,
    accept_new: bool,
    ssh_config: Path | None,
    via: str | None = None,
    partly: bool = False,
    reach: float | None = None,
    user: str | None = None,
    full: bool = False,
) -> Iterator[Subject]:
    """The fleet of a file, connected to all its boxes. Passwords are asked for on the terminal, where there is one.

    With ``via`` ([USER@]HOST) the file is the one that this box keeps with what it is in, and ``path`` is not read.
    With ``partly`` boxes that cannot be reached are left out, as long as one can. ``reach``: how long to wait for a
    box to answer at all, in seconds, where that is less than usual. ``user`` logs in on every box in place of what the
    file says. ``full``: what is to be done on the boxes is more than what moves take.
    """
    import getpass

    from fleetctl.remote.boxes import Boxes
    from fleetctl.remote.errors import SeveralBoxesError
    from fleetctl.run.subject import Subject

    there = sys.stdin.isatty()
    ask_password = (lambda box: getpass.getpass(f"sudo password on {box}: ")) if there else None
    ask_passphrase = (lambda key: getpass.getpass(f"passphrase of {key}: ")) if there else None

    ways: dict[str, Any] = {"ask_password": ask_password, "ask_passphrase": ask_passphrase, "accept_new": accept_new}
    ways["full"] = full
    fleet, text = _of_file(path) if via is None else _of_box(via, **ways, config=ssh_config)
    if user is not None:
        fleet = _as_user(fleet, user)
    if partly:
        boxes, unreachable = Boxes.open_some(fleet, **ways, config=ssh_config, reach=reach)
        if not boxes:
            raise SeveralBoxesError(unreachable)
    else:
        boxes, unreachable = Boxes.open(fleet, **ways, config=ssh_config), {}

    def again(name: str) -> BoxConnection:
        from fleetctl.remote.connection import connect

        return connect(name, fleet.boxes[name], accept_new=accept_new, config=ssh_config, full=full)

    with boxes:
        yield Subject(fleet, text, boxes, unreachable, again, path if via is None else None)


def _as_user(fleet: Fleet, user: str) -> Fleet:
    """The fleet with another login on every box. Keys and known hosts are those of whoever runs this."""
    from fleetctl.spec.fleet import Ssh

    boxes = {}
    for name, box in fleet.boxes.items():
        known = box.ssh.known_hosts
        there = known if known is not None and Path(known).expanduser().exists() else None
        ssh = Ssh(host=box.ssh.host, port=box.ssh.port, known_hosts=there, user=user)
        boxes[name] = box.model_copy(update={"ssh": ssh})
    return fleet.model_copy(update={"boxes": boxes})


def fleet_file(path: Path, via: str | None, *, accept_new: bool, ssh_config: Path | None) -> Fleet:
    """The fleet of a file, or of the one that a box keeps; no other box is connected."""
    return (_of_file(path) if via is None else _of_box(via, accept_new=accept_new, config=ssh_config))[0]


def _of_file(path: Path) -> tuple[Fleet, str]:
    from fleetctl.spec.load import load_fleet

    loaded = load_fleet(path)
    return loaded.fleet, loaded.text


def _of_box(via: str, **ways: Any) -> tuple[Fleet, str]:
    """The fleet.yaml that a box keeps. Raises RefusedError when it keeps none."""
    from fleetctl.remote.connection import connect
    from fleetctl.spec.fleet import Box
    from fleetctl.spec.load import parse_fleet

    user, _, host = via.rpartition("@")
    if not host or host.startswith("-"):
        raise SpecError(f"--via {via} is not [USER@]HOST")
    box = Box.model_validate({"address": host, "memory": 1, "reserve": 0, "ssh": {"user": user or None}})
    with connect(host, box, **ways) as connection:
        text = connection.call("fleet_text")
    if text is None:
        raise RefusedError(
            f"{host} keeps no fleet.yaml: no layout of fleetctl is live there",
            hint="name another box of the fleet, or a fleet.yaml with --fleet",
        )
    return parse_fleet(text, f"the fleet.yaml on {host}"), text


def playbooks(path: Path | None = None) -> Books:
    """Where playbooks come from: those of fleetctl by name, or, when a file is given, that one whatever the name."""
    from fleetctl.plan.expand import STEPS
    from fleetctl.plan.playbook import parse_playbook
    from fleetctl.resources import root_text
    from fleetctl.spec.plain import plain_text

    if path is None:
        return lambda name: parse_playbook(root_text("playbooks", f"{name}.yaml"), f"playbooks/{name}.yaml", STEPS)
    own = parse_playbook(plain_text(path), str(path), STEPS)
    return lambda name: own


def command_line() -> str:
    """The command as the operator typed it, for the lock and the journal."""
    return " ".join(["fleetctl", *sys.argv[1:]])
