"""Where the labs of the tests lie, so that those of several test processes do not meet."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

BASE = Path(os.environ.get("FLEETCTL_LAB_BASE") or "/var/cache/fleetctl-lab/base")
"""The base system of all labs of the tests: built once (half a minute), locked meanwhile, and kept between runs."""


NEW, USED, DIRTY = "new", "used", "dirty"
BOXES_ARE = pytest.StashKey[str]()
"""What the boxes of this test process are like: fresh, with a fleet on them, or not to be built on."""
FILE = pytest.StashKey[Path]()
"""The file whose tests had them last."""


def worker() -> int:
    """Number of this test process: 0 where there is only one."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
