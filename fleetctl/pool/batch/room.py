"""How many lines a model may get that is not in the pool: what its proxy has to spare for requests nobody waits for.

The proxy tells it at ``/fleetctl/health``: for each backend how many engines are usable, how many requests wait, and
how many more the engines would take at once. Pure: the page is handed in.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

PAGE = "/fleetctl/health"


@dataclass(frozen=True)
class Proxied:
    """A model behind the proxy, as the runner has to know it."""

    model: str
    """Its key in fleet.yaml."""
    backend: str
    """What the proxy's page calls it."""
    concurrency: int = 4
    """Lines at once, from this runner."""
    spare: int = 1
    """Places at the engines that stay free, so that a request that somebody waits for finds one."""
    queued: int = 0
    """Requests that may wait at the proxy while lines are taken."""


def room(page: bytes, model: Proxied, at_work: int) -> int:
    """How many more lines to take, while ``at_work`` are under way. A page that does not tell it gives none."""
    try:
        told = json.loads(page)
        usable = int(told["usable"][model.backend])
        waiting = int(told["queued"][model.backend])
        free = int(told["free"][model.backend])
    except (ValueError, KeyError, TypeError):
        return 0
    if usable <= 0 or waiting > model.queued:
        return 0
    most = model.concurrency - at_work
    # HAProxy tells -1 for engines that it gives any number of requests.
    return max(0, most if free < 0 else min(most, free - model.spare))
