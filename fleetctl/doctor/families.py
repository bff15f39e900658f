"""All families, and the kinds that they know."""

from __future__ import annotations

from typing import Any

from fleetctl.doctor.clients import CLIENTS
from fleetctl.doctor.finding import Kind
from fleetctl.doctor.proxy.family import PROXY
from fleetctl.doctor.scene import Family

FAMILIES: tuple[Family[Any], ...] = (CLIENTS, PROXY)


def kinds() -> dict[str, Kind]:
    """Code → kind, in the order of the families."""
    return {kind.code: kind for family in FAMILIES for kind in family.kinds}
