"""What holds for all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# On a machine that others keep busy a property takes as long as it takes.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
