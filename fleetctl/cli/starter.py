"""Looking at boxes that no fleet.yaml names yet, and writing the first one."""

from __future__ import annotations

import getpass
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from fleetctl.errors import SpecError
from fleetctl.remote.connection import connect
from fleetctl.resources import root_text
from fleetctl.spec.fleet import Box, Ssh
from fleetctl.spec.load import parse_fleet
from fleetctl.spec.starter import Starter, model_name, starter
from fleetctl.spec.units import gib


def survey(hosts: list[str], *, accept_new: bool, ssh_config: Path | None) -> dict[str, dict[str, Any]]:
    """What is found on each ``[USER@]HOST``. Raises BoxError for the first that cannot be looked at."""
    there = sys.stdin.isatty()

    def one(host: str) -> dict[str, Any]:
        user, _, target = host.rpartition("@")
        box = Box(address=target, memory=0, reserve=0, ssh=Ssh(user=user or None))
        with connect(
            target,
            box,
            ask_password=(lambda name: getpass.getpass(f"sudo password on {name}: ")) if there else None,
            accept_new=accept_new,
            config=ssh_config,
        ) as connection:
            return dict(connection.call("survey", timeout=60))

    with ThreadPoolExecutor(len(hosts)) as pool:
        return dict(zip(hosts, pool.map(one, hosts), strict=True))


def write_starter(hosts: list[str], out: Path, *, accept_new: bool, ssh_config: Path | None) -> list[str]:
    """Survey the boxes and write the file; returns the boxes' names. Raises SpecError when the file exists."""
    if len(set(hosts)) != len(hosts):
        raise SpecError("the same host is named twice")
    if out.exists():
        raise SpecError(f"{out} exists and is left alone", hint="name another file with --out")
    found = starter(survey(hosts, accept_new=accept_new, ssh_config=ssh_config))
    text = starter_text(found)
    parse_fleet(text, str(out))
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except OSError as error:
        raise SpecError(f"cannot write {out}: {error.strerror}") from error
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    return [box.name for box in found.boxes]


def starter_text(found: Starter) -> str:
    """The commented fleet.yaml."""
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(root_text("templates", "starter.yaml.j2"))
    model = found.model
    return (
        template.render(
            boxes=found.boxes,
            model=model,
            name=model_name(model["path"]) if model else "model",
            size=gib(model["size"]).replace(" ", "") if model else "",
            other_models=found.other_models,
            venv=found.venv,
            other_venvs=found.other_venvs,
            superseded=found.superseded,
            names=", ".join(box.name for box in found.boxes),
        )
        + "\n"
    )
