"""The step kinds. A step is the only thing that changes a box."""

from fleetctl.steps import (
    ahead,
    drained,
    engines,
    firewall,
    floating,
    gate,
    guard,
    images,
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
    "firewall",
    "floating",
    "gate",
    "guard",
    "images",
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
