"""One lab of two boxes for all tests of moves; it is fresh again after a test that failed."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from moving import BOXES, CONTROL, Moving
from places import BASE, BOXES_ARE, DIRTY, FILE, NEW, USED, worker

from fleetctl.lab.engines import bring_up
from fleetctl.lab.lab import Lab

ROOT = Path(f"/var/lib/fleetctl-test-lab{worker()}")


FIRST = (
    "docs",
    "moves",
    "podman",
    "setup",
    "rolling",
    "weights",
    "loras",
    "units",
    "superseded",
    "hold",
    "pool",
    "bridge",
    "failures",
    "boxes",
    "remote",
    "demo",
)
"""Files whose tests run however little time there is, those that take longest first."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test here needs boxes, and boxes need root. What may be left out where time is short comes last."""
    needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="boxes need root")
    turns = {f"test_lab_{name}.py": turn for turn, name in enumerate(FIRST)}
    here = [item for item in items if item.path.parent == Path(__file__).parent]
    for item in here:
        item.add_marker(pytest.mark.lab)
        item.add_marker(needs_root)
        if item.path.name not in turns:
            item.add_marker(pytest.mark.long)
    last = len(turns) + 1
    mine = set(here)
    items.sort(key=lambda item: turns.get(item.path.name, last) if item in mine else last - 1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note on the session that a test failed, so that the next one begins with fresh boxes."""
    report = yield
    if report.failed:
        item.session.stash[BOXES_ARE] = DIRTY
    return report


@pytest.fixture(scope="session")
def moving_lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Two boxes with the stand-in for vLLM, on networks of their own."""
    net = 50 + worker()
    lab = Lab(
        ROOT,
        bridge=f"fleetmove{worker()}",
        subnet=f"10.77.{net}.0/24",
        link_subnet=f"10.78.{net}.0/24",
        base=BASE,
    )
    # What an earlier session that was killed has left is not to be built on.
    request.session.stash[BOXES_ARE] = DIRTY if lab.boxes() else NEW
    try:
        bring_up(lab, 2, "standin", lambda line: None, speed=20)
        yield lab
    finally:
        lab.down()


@pytest.fixture
def moving(moving_lab: Lab, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Moving]:
    """The fleet as the test before left it, or fresh in a new file and after one that failed.

    Engines behave, and load in half a second.
    """
    stash, file = request.session.stash, request.path
    if stash[BOXES_ARE] == DIRTY or (stash[BOXES_ARE] == USED and stash.get(FILE, None) != file):
        moving_lab.reset()
        stash[BOXES_ARE] = NEW
    stash[FILE] = file
    for box in BOXES:
        moving_lab.exec(box, ["rm", "-f", CONTROL])
    text = moving_lab.fleet_file.read_text().replace('STANDIN_LOAD_SECONDS: "5"', 'STANDIN_LOAD_SECONDS: "0.5"')
    yield Moving(moving_lab, tmp_path, text)
    if stash[BOXES_ARE] == NEW:
        stash[BOXES_ARE] = USED


@pytest.fixture
def fresh(moving: Moving, request: pytest.FixtureRequest) -> Moving:
    """Boxes on which fleetctl has never been. What a test puts on them the next one does not see."""
    if request.session.stash[BOXES_ARE] != NEW:
        moving.lab.reset()
    request.session.stash[BOXES_ARE] = DIRTY
    return moving
