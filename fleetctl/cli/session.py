"""Opening the fleet for a command: file, connections, passwords."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fleetctl.errors import SpecError

if TYPE_CHECKING:
    from fleetctl.plan.playbook import Playbook
    from fleetctl.run.planning import Subject


@contextmanager
def open_fleet(path: Path, *, accept_new: bool, ssh_config: Path | None) -> Iterator[Subject]:
    """The fleet of a file, connected to all its boxes. Passwords are asked for on the terminal, where there is one."""
    import getpass

    from fleetctl.remote.boxes import Boxes
    from fleetctl.run.planning import Subject
    from fleetctl.spec.load import load_fleet

    loaded = load_fleet(path)
    there = sys.stdin.isatty()
    with Boxes.open(
        loaded.fleet,
        ask_password=(lambda box: getpass.getpass(f"sudo password on {box}: ")) if there else None,
        ask_passphrase=(lambda key: getpass.getpass(f"passphrase of {key}: ")) if there else None,
        accept_new=accept_new,
        config=ssh_config,
    ) as boxes:
        yield Subject(loaded.fleet, loaded.text, boxes)


def load_playbook(path: Path | None, default: str) -> Playbook:
    """The playbook in a file, or the one that comes with fleetctl."""
    from fleetctl.plan.expand import STEPS
    from fleetctl.plan.playbook import parse_playbook
    from fleetctl.resources import root_text

    if path is None:
        return parse_playbook(root_text("playbooks", f"{default}.yaml"), f"playbooks/{default}.yaml", STEPS)
    try:
        text = path.read_text()
    except OSError as error:
        raise SpecError(f"cannot read the playbook {path}: {error.strerror}") from error
    return parse_playbook(text, str(path), STEPS)


def command_line() -> str:
    """The command as the operator typed it, for the lock and the journal."""
    return " ".join(["fleetctl", *sys.argv[1:]])
