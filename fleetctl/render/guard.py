"""The guard of a box as files: its program, its unit, its settings, and what the services that it protects keep."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources

from fleetctl.render.names import GUARD_FOLDER, GUARD_UNIT, UNIT_FOLDER
from fleetctl.render.release import File
from fleetctl.render.template import fill
from fleetctl.spec.fleet import Fleet
from fleetctl.spec.fleet_guard import Guard

SETTINGS = f"{GUARD_FOLDER}/settings.json"
SLICE = "system.slice"
DROP_IN = "50-fleetctl.conf"
SHARE_OF_RESERVE = 8
SMALLEST_MARK = 64 * 2**20
SHARED = ("__init__", "connections", "days", "services")
"""Modules of the program on a box that the guard uses too."""


def guard_files(fleet: Fleet, box: str) -> tuple[File, ...]:
    """Files of the guard on a box that has an engine; none where fleet.yaml has no ``guard:``."""
    guard = fleet.guard
    if guard is None:
        return ()
    files = [
        File(
            path=f"{UNIT_FOLDER}/{GUARD_UNIT}",
            content=fill("systemd", "guard.service.j2", box=box, folder=GUARD_FOLDER, settings=SETTINGS),
        ),
        File(path=SETTINGS, content=json.dumps(_settings(fleet, guard, box), indent=1) + "\n", mode=0o600),
        File(path=f"{GUARD_FOLDER}/fleetctl/__init__.py", content=""),
        *(File(path=f"{GUARD_FOLDER}/fleetctl/{name}", content=text) for name, text in _program().items()),
    ]
    return (*files, *_protections(guard.protects_on(box)))


def memory_low(guard: Guard, reserve: int) -> int:
    """Available bytes below which the guard of a box with this reserve acts."""
    return guard.memory_low if guard.memory_low is not None else max(reserve // SHARE_OF_RESERVE, SMALLEST_MARK)


@cache
def _program() -> dict[str, str]:
    """Path below ``fleetctl`` → source."""
    package = resources.files("fleetctl")
    own = sorted(entry.name for entry in package.joinpath("guard").iterdir() if entry.name.endswith(".py"))
    paths = [f"guard/{name}" for name in own] + [f"onbox/{name}.py" for name in SHARED]
    return {path: package.joinpath(path).read_text(encoding="utf-8") for path in paths}


def _settings(fleet: Fleet, guard: Guard, box: str) -> dict[str, object]:
    here, proxies = fleet.boxes[box], [fleet.boxes[name] for name in fleet.proxy.on]
    return {
        "box": box,
        "address": here.address,
        "port": guard.port,
        "proxies": sorted({address for proxy in proxies for address in (proxy.address, proxy.link or proxy.address)}),
        "act": guard.act,
        "memory_low": memory_low(guard, here.reserve),
        "pressure": guard.pressure,
        "silent": guard.silent,
        "answer_within": guard.answer_within,
        "idle": guard.idle,
        "restarts": guard.restarts,
        "others": {name: other.address for name, other in fleet.boxes.items() if name != box},
    }


def _protections(kept: dict[str, int]) -> list[File]:
    """A drop-in for each service, and one for the slice above them: the kernel protects no more than that has."""
    if not kept:
        return []
    why = "What the kernel does not take away from this service, whatever else is short."
    above = "As much as the services below it keep together: without it theirs would count for nothing."
    entries = [(unit, "Service", why, size) for unit, size in sorted(kept.items())]
    entries.append((SLICE, "Slice", above, sum(kept.values())))
    return [
        File(
            path=f"{UNIT_FOLDER}/{unit}.d/{DROP_IN}",
            content=fill("systemd", "protect.conf.j2", section=section, why=text, size=size),
        )
        for unit, section, text, size in entries
    ]
