"""What holds for all tests."""

from __future__ import annotations

import os
import signal
import time

import pytest
from hypothesis import HealthCheck, settings

# On a machine that others keep busy a property takes as long as it takes.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # So a shell starts what runs in its background, and every program that is started from there inherits it: one that
    # a test interrupts would never hear of it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

UNTIL = float(os.environ.get("FLEETCTL_TESTS_UNTIL", "inf"))
"""Unix time after which no test begins that is marked `long`. Without it all of them run."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Where there is not time for all tests, those run that show most."""
    if time.time() > UNTIL and item.get_closest_marker("long"):
        pytest.skip("out of time; it runs where FLEETCTL_TESTS_UNTIL is not set")
