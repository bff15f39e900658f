"""What setup and teardown share: boxes by name or as USER@HOST, a first login, host keys confirmed, parts by name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleetctl.errors import SpecError

if TYPE_CHECKING:
    from fleetctl.run.subject import Subject


def wanted_families(given: list[str] | None, option: str) -> frozenset[str]:
    """Names of parts, given one by one or with commas. Raises SpecError, with the nearest name, for one unknown."""
    from fleetctl.plan.setup import FAMILIES
    from fleetctl.spec.problems import did_you_mean

    names = [name.strip() for word in given or () for name in word.split(",") if name.strip()]
    for name in names:
        if name not in FAMILIES:
            known = f"parts: {', '.join(FAMILIES)}"
            raise SpecError(f"{option} {name}: there is no such part", hint=did_you_mean(name, FAMILIES) or known)
    return frozenset(names)


def family_of(part: str) -> str:
    """The family of a part by its name in the record."""
    first = part.split(" ", 1)[0]
    return {"environment": "engine", "image": "engine"}.get(first, first)


@contextmanager
def open_boxes(
    boxes: list[str], file: Path, *, accept_new: bool, ssh_config: Path | None
) -> Iterator[tuple[Subject, list[str]]]:
    """The boxes, connected as somebody who may do everything there, and the names of those that were asked for.

    Without a fleet.yaml they are ``[USER@]HOST``. The box with the fleet's lock is connected in any case. A password
    is asked for where a box takes no key yet, and whether the key of an unknown host is right.
    """
    import getpass

    from fleetctl.cli.ask import confirm
    from fleetctl.remote.boxes import Boxes
    from fleetctl.run.setting_up import fleet_of_hosts
    from fleetctl.run.subject import Subject
    from fleetctl.spec.load import load_fleet
    from fleetctl.spec.problems import did_you_mean

    if file.exists() or not boxes:
        loaded = load_fleet(file)
        fleet, text = loaded.fleet, loaded.text
        names = boxes or list(fleet.boxes)
        for name in names:
            if name not in fleet.boxes:
                known = f"boxes: {', '.join(fleet.boxes)}"
                raise SpecError(f"there is no box {name} in {file}", hint=did_you_mean(name, fleet.boxes) or known)
    else:
        fleet, text = fleet_of_hosts(boxes), ""
        names = list(fleet.boxes)
    there = sys.stdin.isatty()
    ways: dict[str, Any] = {"accept_new": accept_new, "config": ssh_config, "full": True}
    if there:
        ways["ask_password"] = lambda box: getpass.getpass(f"sudo password on {box}: ")
        ways["ask_passphrase"] = lambda key: getpass.getpass(f"passphrase of {key}: ")
        ways["ask_login"] = lambda where: getpass.getpass(f"{where} takes none of your keys yet; password: ")
        ways["confirm_host"] = lambda told: (
            "yes" if confirm(f"{told}\nCompare it with the box's own (ssh-keygen -lf there). Is it right?") else "no"
        )
    wanted = [name for name in fleet.boxes if name in names or name == fleet.proxy.lead]
    with Boxes.open(fleet, wanted, **ways) as opened:
        yield Subject(fleet, text, opened), names
