"""Looking at boxes that no fleet.yaml names yet, and writing the first one."""

from __future__ import annotations

import getpass
import os
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from fleetctl.errors import SpecError
from fleetctl.profiles.advice import Starting, in_comment, starting
from fleetctl.profiles.folders import known_profiles, own_folders
from fleetctl.profiles.kinds import box_seen, model_seen
from fleetctl.profiles.match import Kept
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


@dataclass(frozen=True)
class Written:
    """The names of the boxes in the file, the profiles that its values are from, and that in words."""

    boxes: list[str]
    profiles: list[str]
    told: str


def write_starter(
    hosts: list[str],
    out: Path,
    *,
    accept_new: bool,
    ssh_config: Path | None,
    profiles: Path | None = None,
    mix: str | None = None,
) -> Written:
    """Survey the boxes and write the file. Raises SpecError when it exists."""
    if len(set(hosts)) != len(hosts):
        raise SpecError("the same host is named twice")
    if out.exists():
        raise SpecError(f"{out} exists and is left alone", hint="name another file with --out")
    known = known_profiles(own_folders(profiles, out))
    surveys = survey(hosts, accept_new=accept_new, ssh_config=ssh_config)
    found = starter(surveys)
    advised = advise(found, surveys, known, mix)
    text = starter_text(found, advised)
    parse_fleet(text, str(out))
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except OSError as error:
        raise SpecError(f"cannot write {out}: {error.strerror}") from error
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    used = [one.profile for one in (advised.copies, advised.split) if one is not None]
    return Written([box.name for box in found.boxes], used, advised.told)


def advise(found: Starter, surveys: dict[str, dict[str, Any]], known: list[Kept], mix: str | None) -> Starting:
    """What profiles say of the model that was found, on these boxes."""
    kinds = [box_seen(told["kind"]).kind for told in surveys.values() if "kind" in told]
    if found.model is None or not kinds:
        return Starting(None, None, "no model was found that all boxes have: no profile was looked for")
    model = model_seen(str(found.model["path"]).rstrip("/").rpartition("/")[2], found.model)
    return starting(known, model, kinds, found.usable, mix)


def starter_text(found: Starter, advised: Starting | None = None) -> str:
    """The commented fleet.yaml."""
    advices = (advised.copies, advised.split) if advised is not None else (None, None)
    copies, split = ({} if one is None else one.values for one in advices)
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
            told=[f"# {line}" for line in textwrap.wrap(in_comment(advised.told), 118)] if advised else [],
            copies=copies,
            split=split,
            model_values=copies or split,
        )
        + "\n"
    )
