"""The family of findings about the proxy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fleetctl.doctor.finding import Finding
from fleetctl.doctor.proxy import address, running, settings, shares
from fleetctl.doctor.proxy.told import ProxyTold
from fleetctl.doctor.scene import Family, Scene
from fleetctl.render.release import ProxyConfig

KINDS = (*settings.KINDS, *running.KINDS, *shares.KINDS, *address.KINDS)
UNIT = ProxyConfig.model_fields["unit"].default


def ask(scene: Scene, box: str) -> dict[str, Any] | None:
    """What a box is asked: all of them may have an old proxy, and some have the fleet's own."""
    proxy = scene.live.proxy
    mine = proxy is not None and box in proxy.boxes
    edited = mine and settings.CONFIG in scene.observed[box].drift
    return {
        "socket_path": proxy.admin_socket if proxy is not None and mine else None,
        "unit": proxy.unit if proxy is not None else UNIT,
        "config": settings.CONFIG if edited else None,
    }


def find(scene: Scene, told: Mapping[str, ProxyTold]) -> Iterator[Finding]:
    """Every finding about the proxy."""
    yield from settings.settings(scene, told)
    yield from running.running(scene, told)
    yield from shares.shares(scene, told)
    yield from address.address(scene, told)


PROXY = Family("proxy", KINDS, find, ProxyTold, "examine_proxy", ask)
