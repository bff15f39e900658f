"""Engines in containers of Docker: a cutover and back, what a killed client or daemon leaves, an image copied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from containers import image_on, lab_of_containers, moving_in
from moving import BOXES, COPY, SPLIT, Moving, eventually

from fleetctl.lab.lab import Lab

# A box has the limits of this machine, and Docker does not take more than there is.
LIMITS = '"--ulimit=nofile=20000:20000", "--ulimit=memlock=8388608:8388608"'


@pytest.fixture(scope="module")
def docker_lab() -> Iterator[Lab]:
    with lab_of_containers("docker") as lab:
        yield lab


@pytest.fixture
def moving(docker_lab: Lab, tmp_path: Path) -> Moving:
    return moving_in(docker_lab, tmp_path, LIMITS)


def in_containers(moving: Moving, unit: str) -> None:
    """One container on each box, of the unit's name, and status content."""
    for box in BOXES:
        names = moving.sh(box, "docker ps --all --format '{{.Names}} {{.State}}'").splitlines()
        assert names == [f"{unit.removesuffix('.service')} running"]
        assert moving.unit(box, unit) == ("active", "enabled")
    seen = moving.status()
    assert (seen["exit"], seen["problems"]) == (0, []), seen
    assert moving.answers()


def test_split_to_replicas_and_back_with_every_request_answered(moving: Moving) -> None:
    moving.cutover("split")
    in_containers(moving, SPLIT)
    with moving.steady_traffic() as told:
        moving.cutover("replicas")
        in_containers(moving, COPY)
        moving.rollback()
        in_containers(moving, SPLIT)
    assert told.failed == []
    assert len(told.statuses) > 10


@pytest.mark.parametrize("kill", [f"kill -9 $(systemctl show -P MainPID {COPY})", "systemctl kill -s KILL docker"])
def test_a_container_left_by_a_killed_client_or_daemon_goes_and_the_engine_starts_again(
    moving: Moving, kill: str
) -> None:
    moving.be_in("replicas")
    before = moving.pid("box2", COPY)
    moving.sh("box2", kill)
    eventually(lambda: moving.pid("box2", COPY) not in ("0", before) and moving.unit("box2", COPY)[0] == "active")
    eventually(lambda: moving.servers()["standin/replicas-box2"] == "UP")
    assert len(moving.sh("box2", "docker ps --all --quiet").split()) == 1
    assert moving.answers()


def test_an_image_is_pushed_to_the_box_that_lacks_it(moving: Moving) -> None:
    moving.be_in("replicas")
    moving.sh("box1", "printf one > /root/f; tar cf - -C /root f | docker import - localhost/other:1")
    pushed = moving.run("images", "push", "localhost/other:1", "box2", "--engine", "docker", "--yes")
    assert pushed.rc == 0, pushed
    there = [image_on(moving, box, "docker", "localhost/other:1") for box in BOXES]
    assert there[0] == there[1] != ""
    assert moving.run("images", "verify").rc == 0
