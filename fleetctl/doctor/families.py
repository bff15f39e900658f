"""All families, and the kinds that they know."""

from __future__ import annotations

from typing import Any

from fleetctl.doctor.box.family import FAMILY as BOX
from fleetctl.doctor.finding import Kind
from fleetctl.doctor.memory.family import FAMILY as MEMORY
from fleetctl.doctor.scene import Family

FAMILIES: tuple[Family[Any], ...] = (MEMORY, BOX)


def kinds() -> dict[str, Kind]:
    """Code → kind, in the order of the families."""
    return {kind.code: kind for family in FAMILIES for kind in family.kinds}
