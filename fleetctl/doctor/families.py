"""All families, and the kinds that they know."""

from __future__ import annotations

from typing import Any

from fleetctl.doctor.adapters import ADAPTERS
from fleetctl.doctor.box.family import FAMILY as BOX
from fleetctl.doctor.clients import CLIENTS
from fleetctl.doctor.engines.family import ENGINES
from fleetctl.doctor.finding import Kind
from fleetctl.doctor.link.family import LINK
from fleetctl.doctor.memory.family import FAMILY as MEMORY
from fleetctl.doctor.pool import POOL
from fleetctl.doctor.processes import PROCESSES
from fleetctl.doctor.proxy.family import PROXY
from fleetctl.doctor.scene import Family
from fleetctl.doctor.units.family import UNITS

FAMILIES: tuple[Family[Any], ...] = (UNITS, PROCESSES, CLIENTS, PROXY, MEMORY, BOX, LINK, ENGINES, ADAPTERS, POOL)


def kinds() -> dict[str, Kind]:
    """Code → kind, in the order of the families."""
    return {kind.code: kind for family in FAMILIES for kind in family.kinds}
