"""What setup and teardown share: boxes by name or as USER@HOST, a first login, host keys confirmed, parts by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleetctl.errors import FleetError, SpecError

if TYPE_CHECKING:
    from fleetctl.run.subject import Subject
    from fleetctl.spec.fleet import Fleet


def wanted_families(given: list[str] | None, option: str) -> frozenset[str]:
    """Names of parts, given one by one or with commas. Raises SpecError, with the nearest name, for one unknown."""
    from fleetctl.plan.setup_wish import FAMILIES
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
    boxes: list[str],
    file: Path,
    *,
    accept_new: bool,
    ssh_config: Path | None,
    agree: Callable[[str], bool] | None = None,
) -> Iterator[tuple[Subject, list[str]]]:
    """The boxes, connected as somebody who may do everything there, and the names of those that were asked for.

    Without a fleet.yaml they are ``[USER@]HOST``. The box with the fleet's lock is connected in any case. A password
    is asked for where a box takes no key yet, and whether the key of an unknown host is right. With ``agree``, which
    asks, python3 is installed where there is none.
    """
    import functools
    import getpass

    from fleetctl.cli.ask import confirm
    from fleetctl.remote.boxes import Boxes
    from fleetctl.remote.errors import NoPythonError, SeveralBoxesError
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
        ways["ask_password"] = functools.cache(lambda box: getpass.getpass(f"sudo password on {box}: "))
        ways["ask_passphrase"] = lambda key: getpass.getpass(f"passphrase of {key}: ")
        told = "takes none of your keys yet; password: "
        ways["ask_login"] = functools.cache(lambda where: getpass.getpass(f"{where} {told}"))
        ways["confirm_host"] = lambda told: (
            "yes" if confirm(f"{told}\nCompare it with the box's own (ssh-keygen -lf there). Is it right?") else "no"
        )
    wanted = [name for name in fleet.boxes if name in names or name == fleet.proxy.lead]
    first, failed = Boxes.open_some(fleet, wanted, **ways)
    if failed:
        first.close()
        if agree is None or not any(isinstance(error, NoPythonError) for error in failed.values()):
            raise next(iter(failed.values())) if len(failed) == 1 else SeveralBoxesError(failed)
        _bring_python(fleet, failed, ways, agree)
        first = Boxes.open(fleet, wanted, **ways)
    with first as opened:
        yield Subject(fleet, text, opened), names


def _bring_python(
    fleet: Fleet, failed: dict[str, FleetError], ways: dict[str, Any], agree: Callable[[str], bool]
) -> None:
    """Install python3 where there is none: nothing else can be looked at, or done, before that."""
    from fleetctl.errors import BoxError
    from fleetctl.remote.errors import NoPythonError
    from fleetctl.remote.link import Ways
    from fleetctl.remote.without_python import WORDS, install_python

    for name, error in failed.items():
        if not isinstance(error, NoPythonError):
            continue
        if not agree(f"{name} has no python3, which setup needs there: {WORDS}. It stays there. Do it?"):
            raise error

        def password(name: str = name) -> str:
            box = fleet.boxes[name]
            if box.ssh.sudo_password is not None:
                return box.ssh.sudo_password.read()
            if "ask_password" not in ways:
                raise BoxError(name, "sudo wants a password, and there is nobody to ask")
            return str(ways["ask_password"](name))

        way = Ways(
            config=ways["config"],
            accept_new=ways["accept_new"],
            ask_passphrase=ways.get("ask_passphrase"),
            ask_login=ways.get("ask_login"),
            confirm_host=ways.get("confirm_host"),
        )
        install_python(name, fleet.boxes[name], way, password)
