"""Whether engines of two layouts fit the memory of a box together. Pure.

They do where the file gives every one of them its share (``gpu_memory_utilization``) and the shares leave the reserve:
without a share of its own an engine gets all that there is.
"""

from __future__ import annotations

from fleetctl.capacity.budget import demands_on, usable_share
from fleetctl.spec.fleet import Fleet, Placement


def fit_beside(fleet: Fleet, box: str, one: str, other: str) -> bool:
    """Engines of layouts ``one`` and ``other`` on a box take no more together than it has for engines.

    A pool has all that the others leave.
    """
    if any(placement.pool and box in placement.pool for name in (one, other) for placement in _of(fleet, name)):
        return False
    shares = [demand.fixed for layout in (one, other) for demand in demands_on(fleet, layout, box, {})]
    known = [share for share in shares if share is not None]
    return len(known) == len(shares) and round(sum(known) * 100, 6) <= usable_share(fleet, box)


def _of(fleet: Fleet, layout: str) -> list[Placement]:
    return list(fleet.layouts[layout].values())
