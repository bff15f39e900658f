"""The step kinds. A step is the only thing that changes a box."""

from fleetctl.steps import (
    ahead,
    drained,
    engines,
    fetch,
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
    weights,
)
from fleetctl.steps.base import KINDS

__all__ = [
    "KINDS",
    "ahead",
    "drained",
    "engines",
    "fetch",
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
    "weights",
]
