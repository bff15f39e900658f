"""What doctor asks of a box about the pool: its worker's state, and how full the queue's store is. Changes nothing."""

import os
from typing import Any, Dict, Optional

from fleetctl.onbox.main import Call, op
from fleetctl.onbox.pool import pool_state
from fleetctl.onbox.weightsproof import allocated

STORE = "/var/lib/fleetctl-nats"


@op("examine_pool")
def examine_pool(call: Call) -> Dict[str, Any]:
    """As ``pool_state``, and ``store``: bytes that the queue takes here and that its disk has left; None: no queue."""
    return dict(pool_state(call), store=store_of(STORE))


def store_of(folder: str) -> Optional[Dict[str, int]]:
    """``used`` (as blocks of the disk) and ``free`` bytes of a folder; None where there is none."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return None
    return {"used": allocated(folder), "free": disk.f_bavail * disk.f_frsize}
