"""A lab whose engines run in containers, for the tests of Podman and Docker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moving import Moving
from places import BASE, worker

from fleetctl.lab.engines import bring_up
from fleetctl.lab.image import IMAGE
from fleetctl.lab.lab import Lab
from fleetctl.lab.state import Containers

NUMBERS = {"podman": 150, "docker": 200}


@contextmanager
def lab_of_containers(program: Containers) -> Iterator[Lab]:
    """Two boxes that have a container engine and the image with the stand-in; they are gone afterwards."""
    assert program is not None
    net = NUMBERS[program] + worker()
    lab = Lab(
        Path(f"/var/lib/fleetctl-test-{program}{worker()}"),
        bridge=f"fleet{program}{worker()}",
        subnet=f"10.77.{net}.0/24",
        link_subnet=f"10.78.{net}.0/24",
        base=BASE,
    )
    try:
        bring_up(lab, 2, "standin", lambda line: None, speed=20, containers=program)
        yield lab
    finally:
        lab.down()


def moving_in(lab: Lab, folder: Path, options: str = "") -> Moving:
    """The fleet of the lab, with engines that load in half a second; ``options`` are further ones of `run`."""
    text = lab.fleet_file.read_text().replace('STANDIN_LOAD_SECONDS: "5"', 'STANDIN_LOAD_SECONDS: "0.5"')
    return Moving(lab, folder, text.replace("gpus: none}", f"gpus: none, options: [{options}]}}"))


def image_on(moving: Moving, box: str, program: str, name: str = IMAGE) -> str:
    """ID of an image on a box, with sha256: before it; empty where there is none."""
    told = moving.sh(box, f"{program} image inspect --format '{{{{.Id}}}}' {name} 2>/dev/null").strip()
    return told if told in ("", "[]") or told.startswith("sha256:") else f"sha256:{told}"
