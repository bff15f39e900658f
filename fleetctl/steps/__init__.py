"""The step kinds. A step is the only thing that changes a box."""

from fleetctl.steps import (
    ahead,
    drained,
    engines,
    firewall,
    floating,
    gate,
    guard,
    measuring,
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
    "ahead",
    "drained",
    "engines",
    "firewall",
    "floating",
    "gate",
    "guard",
    "measuring",
    "mend",
    "pagecache",
    "prepare",
    "probe",
    "settle",
    "superseded",
    "traffic",
    "trial",
]
