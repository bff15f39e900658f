"""What most tests of a pool need: a NATS of their own, and engines as processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from natsserver import NatsServer, running
from poolworker import ProcessUnits


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with running(tmp_path) as server:
        yield server


@pytest.fixture
def units() -> Iterator[ProcessUnits]:
    units = ProcessUnits()
    yield units
    units.end()
