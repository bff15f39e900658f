"""Weights from the operator's machine to a box: parts over SSH, proven like those between boxes."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from pathlib import Path

from fleetctl.errors import BoxError, SpecError, StepError
from fleetctl.onbox.main import Call, CancelledError, OpError
from fleetctl.onbox.manifests import entry, tree_of
from fleetctl.onbox.partsums import hash_all
from fleetctl.onbox.partswire import Pace, RefusedError, greet, serve_parts
from fleetctl.onbox.weightplaces import Place, names_in
from fleetctl.onbox.weightsmove import goal_of
from fleetctl.onbox.weightsproof import refuse_other_than_hub
from fleetctl.remote.connection import BoxConnection
from fleetctl.remote.listening import Listener
from fleetctl.steps.base import Record

HERE = "127.0.0.1"  # the box listens for its own sshd, which a tunnel ends in


def here(hear: Callable[[Record], None]) -> Call:
    """The half of the program on a box that reads files, at work on this machine."""
    return Call(0, lambda message: hear(message["event"]))


def local_goal(call: Call, folder: Path, *, of_hub: bool) -> tuple[Record, list[str]]:
    """What a box is to have, from a folder of this machine, and the paths of its files by their number.

    ``of_hub``: it is a revision in this machine's cache. Raises SpecError for a folder without files.
    """
    if of_hub:
        place = Place(str(folder), repository=str(folder.parent.parent), commit=folder.name)
    elif folder.is_file():
        place = Place(str(folder.parent), only=folder.name)
    else:
        place = Place(str(folder))
    try:
        names = names_in(place)
        if not names:
            raise SpecError(f"{folder}: no files of a model in it")
        sums = hash_all(call, {name: place.path(name) for name in names})
        refuse_other_than_hub(place, sums)
    except OpError as error:
        raise StepError(f"this machine: {error}") from None
    files = {name: entry(sums[name]) for name in names}
    goal = goal_of(place, {"files": files, "tree": tree_of(files)})
    return {**goal, "owner": "root:root"}, [place.path(name) for name in names]


def for_folder(goal: Record) -> Record:
    """The goal of a revision of the hub where it goes into a plain folder."""
    files = {name: {**one, "blob": ""} for name, one in goal["files"].items()}
    return {**goal, "commit": "", "refs": [], "files": files}


def upload(
    box: BoxConnection,
    place: Record,
    goal: Record,
    paths: list[str],
    limit: float | None,
    hear: Callable[[Record], None],
) -> Record:
    """Send the parts that a begun transfer wants through the SSH connection. Raises OpFailed when it breaks off."""
    key = secrets.token_hex(32)
    args = {
        "place": place,
        "goal": {"commit": goal["commit"], "one_file": goal["one_file"]},
        "ends": {"own": HERE, "peer": HERE, "port": 0, "gentle": limit is not None},
        "key": key,
        "streams": 1,
    }
    receiving = Listener(box, "weights_receive", args, hear)
    broken = _send(box, receiving.port, key, paths, limit) if receiving.port else None
    receiving.end()
    if (failed := receiving.failed) is not None:
        raise failed if broken is None else BoxError(box.name, f"{failed.message} ({broken})")
    return dict(receiving.told)


def _send(box: BoxConnection, port: int, key: str, paths: list[str], limit: float | None) -> str | None:
    """Serve all that is asked for; what broke it off, if anything did."""
    with box.tunnel(HERE, port) as path, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.connect(str(path))
            greet(sock, key, listens=False)
            serve_parts(Call(0, lambda message: None), sock, paths, Pace(limit), lambda count: None)
        except (OSError, OpError, RefusedError, CancelledError) as error:
            return str(error) or type(error).__name__
    return None
