"""The first fleet.yaml: a commented text made from what a survey of the boxes found. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleetctl.spec.units import gib, parse_size

GIB = 1024**3
ROOM = 4 * GIB  # bytes kept beside what other processes hold today: they grow, and the kernel needs some


@dataclass(frozen=True)
class StarterBox:
    """A box as the starter describes it. ``ssh`` is the inline mapping of how it was reached."""

    name: str
    address: str
    link: str | None
    interface: str | None
    memory: str
    reserve: str
    others: str
    ssh: str
    haproxy: bool


@dataclass(frozen=True)
class Starter:
    """All that the template is filled with."""

    boxes: tuple[StarterBox, ...]
    model: Mapping[str, Any] | None
    other_models: tuple[str, ...]
    venv: str | None
    other_venvs: tuple[str, ...]
    superseded: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def usable(self) -> float:
        """The part of its memory that the box with the least room leaves to engines, in whole hundredths."""
        sizes = [(parse_size(box.memory), parse_size(box.reserve)) for box in self.boxes]
        return min((memory - reserve) * 100 // memory / 100 for memory, reserve in sizes)


def starter(surveys: Mapping[str, Mapping[str, Any]]) -> Starter:
    """What to write, from surveys by the ``[USER@]HOST`` that the operator named, in that order."""
    names = _names([str(survey["hostname"]) for survey in surveys.values()])
    shared = _shared_networks(list(surveys.values()))
    boxes = tuple(_box(name, host, survey, shared) for name, (host, survey) in zip(names, surveys.items(), strict=True))
    common_models = _common([{m["path"]: m for m in survey["models"]} for survey in surveys.values()])
    models = sorted(common_models.values(), key=lambda model: -model["size"])
    venvs = sorted(_common([dict.fromkeys(survey["venvs"]) for survey in surveys.values()]))
    units: dict[str, list[str]] = {}
    for name, survey in zip(names, surveys.values(), strict=True):
        for unit in survey["units"]:
            units.setdefault(unit["unit"], []).append(name)
    return Starter(
        boxes=boxes,
        model=models[0] if models else None,
        other_models=tuple(model["path"] for model in models[1:]),
        venv=venvs[0] if venvs else None,
        other_venvs=tuple(venvs[1:]),
        superseded=tuple((unit, tuple(found)) for unit, found in sorted(units.items())),
    )


def model_name(path: str) -> str:
    """A key for models: from the folder's name."""
    return _name(path.rstrip("/").rsplit("/", 1)[-1])


def _name(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:31].rstrip("-") or "box"


def _names(hostnames: list[str]) -> list[str]:
    """Names for boxes from their host names; those that share one get a number."""
    plain = [_name(hostname) for hostname in hostnames]
    return [
        name if plain.count(name) == 1 else f"{name[:28]}-{plain[: at + 1].count(name)}"
        for at, name in enumerate(plain)
    ]


def _common(found: list[dict[str, Any]]) -> dict[str, Any]:
    """What every box has."""
    first, *rest = found
    return {key: value for key, value in first.items() if all(key in other for other in rest)}


def _network(entry: Mapping[str, Any]) -> str:
    return str(ipaddress.ip_interface(f"{entry['address']}/{entry['prefix']}").network)


def _shared_networks(surveys: list[Mapping[str, Any]]) -> set[str]:
    """Networks that every box has an address in."""
    networks = [{_network(entry) for entry in survey["addresses"]} for survey in surveys]
    return set.intersection(*networks) if networks else set()


def _box(name: str, host: str, survey: Mapping[str, Any], shared: set[str]) -> StarterBox:
    user, _, target = host.rpartition("@")
    found = list(survey["addresses"])
    named = [entry for entry in found if entry["address"] == target]
    main = (named or [entry for entry in found if entry["default"]] or found or [{"address": target}])[0]
    links = [entry for entry in found if _network(entry) in shared and entry["address"] != main["address"]]
    link = min(links, key=lambda entry: -int(entry["prefix"])) if links else None
    reserve = -(-(int(survey["others"]) + ROOM) // GIB)
    ssh = ([f"host: {target}"] if target != main["address"] else []) + ([f"user: {user}"] if user else [])
    return StarterBox(
        name=name,
        address=main["address"],
        link=link["address"] if link else None,
        interface=link["interface"] if link else None,
        memory=f"{survey['memory'] // 1024**2}MiB",
        reserve=f"{reserve}GiB",
        others=gib(int(survey["others"])),
        ssh=", ".join(ssh),
        haproxy=bool(survey["haproxy"]),
    )
