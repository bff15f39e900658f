"""A fleet of two boxes by hand: its file, and what its boxes look like when they are in a layout."""

from __future__ import annotations

import copy
from typing import Any

from fleetctl.facts.types import BoxFacts, Observed, ProcessFacts, ProxyFacts, ServerFacts, UnitFacts
from fleetctl.plan.build import build_plan
from fleetctl.plan.difference import description, engine_name
from fleetctl.plan.expand import STEPS
from fleetctl.plan.playbook import Playbook, parse_playbook
from fleetctl.plan.types import Plan
from fleetctl.render.layout import render_layout
from fleetctl.render.release import Release
from fleetctl.resources import root_text
from fleetctl.spec.fleet import Fleet

GIB = 1024**3
BEFORE = Release(fleet="office", layout=None)
SPLIT, COPY, PROXY = "fleetctl-split-qwen.service", "fleetctl-replicas-qwen.service", "fleetctl-proxy.service"
VRRP = "fleetctl-vrrp.service"
TWO_PROXIES: dict[str, Any] = {"boxes": ["a", "b"], "floating": {"address": "10.0.0.50"}}

OFFICE: dict[str, Any] = {
    "fleet": "office",
    "boxes": {
        "a": {"address": "10.0.0.1", "link": "10.1.0.1", "memory": "128GiB", "reserve": "32GiB"},
        "b": {"address": "10.0.0.2", "link": "10.1.0.2", "memory": "128GiB", "reserve": "16GiB"},
    },
    "models": {
        "qwen": {
            "weights": "/models/qwen",
            "weights_size": "71GiB",
            "context": 262144,
            "launch": {"venv": "/opt/vllm"},
            "load_limit": "10m",
        }
    },
    "layouts": {"split": {"qwen": {"split": ["a", "b"]}}, "replicas": {"qwen": {"copies": ["a", "b"]}}},
    "proxy": {"box": "a"},
}


def office(**changes: Any) -> Fleet:
    """The office's fleet. ``models.qwen.arguments=[…]`` is written ``models__qwen__arguments``."""
    document = copy.deepcopy(OFFICE)
    for path, value in changes.items():
        *folders, last = path.split("__")
        place = document
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = value
    return Fleet.model_validate(document)


def layout(name: str, **changes: Any) -> Release:
    """A layout of the office."""
    return render_layout(office(**changes), name)


def unit(active: str = "active", enabled: str = "enabled", **more: Any) -> UnitFacts:
    """A unit as seen; ``fragment`` and ``load`` follow from the rest."""
    return UnitFacts(
        load="loaded", active=active, sub="running" if active == "active" else "dead", enabled=enabled, **more
    )


def box_in(release: Release, box: str, number: int | None, **more: Any) -> BoxFacts:
    """A box that is as the release wants it."""
    units = {}
    for engine, rank in release.ranks_on(box):
        units[rank.unit] = unit(
            engine=engine_name(engine, rank, release.layout), fragment=f"/etc/systemd/system/{rank.unit}"
        )
    proxy = None
    if release.proxy and box in release.proxy.boxes:
        units[release.proxy.unit] = unit(fragment=f"/etc/systemd/system/{release.proxy.unit}")
        servers = {
            f"{backend.name}/{server.name}": ServerFacts(
                status="UP" if server.layout == release.layout else "MAINT", weight=1
            )
            for backend in release.proxy.backends
            for server in backend.servers
        }
        proxy = ProxyFacts(description=description(release.proxy), servers=servers)
    addresses = [OFFICE["boxes"][box]["address"]]
    if release.proxy and release.proxy.floating and box in release.proxy.boxes:
        units[VRRP] = unit(fragment=f"/etc/systemd/system/{VRRP}")
        addresses += [release.proxy.address] if box == release.proxy.lead else []
    facts = {
        "hostname": box,
        "boot": f"boot-{box}",
        "time": 0.0,
        "python": "3.11",
        "memory": {"total": 128 * GIB, "available": 120 * GIB},
        "free": {"/etc/fleetctl": GIB, "/var/lib/fleetctl": GIB},
        "units": units,
        "ours": tuple(units),
        "proxy": proxy,
        "generation": number,
        "release": release if number is not None else None,
        "haproxy": "/usr/sbin/haproxy",
        "keepalived": "/usr/sbin/keepalived",
        "addresses": addresses,
    }
    return BoxFacts.model_validate({**facts, **more})


def boxes_in(release: Release, generation: int | None = 1, **more: dict[str, Any]) -> Observed:
    """Both boxes as the release wants them; ``a={…}`` changes facts of one."""
    return {name: box_in(release, name, generation, **more.get(name, {})) for name in ("a", "b")}


def process(engine: str | None = None, unit_name: str | None = None) -> ProcessFacts:
    """Process 4711."""
    return ProcessFacts(pid=4711, comm="VLLM::EngineCor", unit=unit_name, engine=engine)


def playbook(name: str) -> Playbook:
    """One that ships."""
    return parse_playbook(root_text("playbooks", f"{name}.yaml"), name, STEPS)


def plan(
    source: Release, target: Release, observed: Observed, generation: int | None = 2, book: str = "cutover"
) -> Plan:
    """The plan of a move."""
    return build_plan(
        source=source,
        target=target,
        observed=observed,
        questions={},
        playbook=playbook(book),
        operation=book,
        lead="a",
        move="m",
        generation=generation,
        previous=1,
    )
