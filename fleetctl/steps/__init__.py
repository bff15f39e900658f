"""The step kinds. A step is the only thing that changes a box."""

from fleetctl.steps import (
    adapters,
    ahead,
    drained,
    engines,
    firewall,
    floating,
    gate,
    guard,
    mend,
    pagecache,
    prepare,
    probe,
    settle,
    superseded,
    traffic,
    trial,
)
from fleetctl.steps.base import KINDS

__all__ = [
    "KINDS",
    "adapters",
    "ahead",
    "drained",
    "engines",
    "firewall",
    "floating",
    "gate",
    "guard",
    "mend",
    "pagecache",
    "prepare",
    "probe",
    "settle",
    "superseded",
    "traffic",
    "trial",
]
