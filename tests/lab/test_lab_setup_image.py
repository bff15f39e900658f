"""Setup pulls the image of an engine from a registry that is one, and teardown takes off what setup pulled."""

from __future__ import annotations

import itertools
import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bare import Bare
from moving import Running
from places import BASE, worker
from registry import Registry, registry

from fleetctl.errors import InterruptedMoveError, MoveUndoneError
from fleetctl.lab.engines import fleet_text
from fleetctl.lab.lab import Lab

SETUP = ("setup", "--only", "engine", "--yes")
SMALL, LARGE = 200_000, 6_000_000
SOON = 15.0  # seconds after Ctrl-C; the pull would never end
UNDONE, INTERRUPTED = MoveUndoneError.exit_code, InterruptedMoveError.exit_code
MINE = "localhost/mine:1"
"""An image that was on the box before, under a name of its own."""


@dataclass
class Pulling:
    """A box with Podman, and a registry that it is told of."""

    bare: Bare
    registry: Registry
    _files: int = 0

    def fleet(self, *images: str) -> Path:
        """A fleet.yaml whose models run from these images."""

        def change(told: dict[str, Any]) -> None:
            launches = {f"m{at}": {"image": image, "engine": "podman"} for at, image in enumerate(images)}
            told["models"] = {
                name: {"weights": "/models/m", "context": 8, "launch": launch} for name, launch in launches.items()
            }
            told["layouts"] = {"replicas": {name: {"copies": ["box1"]} for name in launches}}

        self._files += 1
        return self.bare.write(f"image-{self._files}.yaml", change)

    def on(self, script: str) -> str:
        return self.bare.on("box1", script)

    def lies(self) -> str:
        """All that Podman keeps on the box, and what setup has noted there."""
        return self.on(
            "podman images --all --no-trunc --format '{{.Repository}} {{.Tag}} {{.ID}}' | sort;"
            "cd /var/lib/containers/storage; find vfs/dir vfs-layers -mindepth 1 -maxdepth 1 "
            "! -name '*.lock' ! -name 'layers.json' 2>/dev/null | sort;"
            "ls -A /var/tmp; cat /var/lib/fleetctl/setup.json 2>&1 || true"
        )

    def half_fetched(self) -> str:
        """What lies where Podman puts what is not whole yet, and whether it fetches still."""
        return self.on("ls -A /var/tmp; pgrep -x podman || true")

    @contextmanager
    def held(self, fleet: Path) -> Iterator[Running]:
        """A setup whose pull goes on only when the block ends."""
        self.registry.door.hold(LARGE // 2)
        running = self.bare.start(*SETUP, fleet=fleet)
        try:
            running.until("setup.set_up.box1")
            assert self.registry.door.held.wait(SOON)
            yield running
        finally:
            self.registry.door.open()

    def names(self) -> set[str]:
        told = self.on("podman images --format '{{.Repository}}:{{.Tag}} {{.Repository}}@{{.Digest}}'")
        return set(told.split())


@pytest.fixture(scope="module")
def pulling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pulling]:
    net = 50 + worker()
    lab = Lab(
        Path(f"/var/lib/fleetctl-test-pull{worker()}"),
        bridge=f"fleetpull{worker()}",
        subnet=f"10.81.{net}.0/24",
        link_subnet=f"10.82.{net}.0/24",
        base=BASE,
    )
    folder = tmp_path_factory.mktemp("pulling")
    try:
        made = lab.up(1, containers="podman")
        with registry(folder, str(lab.bridge.host_address)) as one:
            bare = Bare(lab, folder, folder / "fleet.yaml")
            bare.fleet.write_text(fleet_text(lab, made, "standin"))
            told = f'[[registry]]\nlocation = "{one.host}"\ninsecure = true\n'
            bare.on(
                "box1", f"cat > /etc/containers/registries.conf.d/lab.conf <<'END'\n{told}END\npodman info >/dev/null"
            )
            yield Pulling(bare, one)
    finally:
        lab.down()


def test_images_are_shown_then_pulled_once_and_go_with_teardown_but_for_what_was_there(pulling: Pulling) -> None:
    bare, host = pulling.bare, pulling.registry.host
    first, pinned = f"{host}/engines/one:1", pulling.registry.push("engines/pinned:1", SMALL)
    pulling.registry.push("engines/one:1", SMALL, SMALL)
    pulling.registry.push("engines/two:1", SMALL)
    two = f"{host}/engines/two:1"
    pulling.on(f"podman pull -q {two} && podman tag {two} {MINE} && podman untag {two} {two}")
    fleet, before = pulling.fleet(first, two, pinned, MINE), pulling.lies()
    shown = bare.run("setup", "--only", "engine", fleet=fleet, ok=False)
    assert shown.rc == 2 and "podman pull " in json.dumps(shown.events) and pulling.lies() == before
    done = bare.run(*SETUP, fleet=fleet)
    told = json.dumps(list(itertools.takewhile(lambda event: event["type"] != "step", done.events)))
    assert all(f"podman pull {image}" in told for image in (first, two, pinned))
    assert f"podman pull {MINE}" not in told
    assert {first, two, pinned, MINE} <= pulling.names()
    assert bare.run(*SETUP, fleet=fleet).nothing
    bare.run("teardown", "box1", "--yes", fleet=fleet)
    assert pulling.lies() == before


def test_an_image_that_the_registry_does_not_have_is_refused_in_one_message(pulling: Pulling) -> None:
    image, before = f"{pulling.registry.host}/engines/none:1", pulling.lies()
    ran = pulling.bare.run(*SETUP, fleet=pulling.fleet(image), ok=False)
    assert ran.rc == UNDONE and f"podman cannot pull {image}" in ran.said and "manifest unknown" in ran.said, ran
    assert pulling.lies() == before


def test_a_pull_that_is_cut_off_is_undone_or_finished_and_leaves_nothing_half_fetched(pulling: Pulling) -> None:
    """By Ctrl-C, and by the end of the operator's program; layers that were whole stay until teardown."""
    pulling.registry.push("engines/three:1", SMALL, LARGE)
    image, bare = f"{pulling.registry.host}/engines/three:1", pulling.bare
    fleet, before, nothing = pulling.fleet(image), pulling.lies(), pulling.half_fetched()

    with pulling.held(fleet) as running:
        began = time.monotonic()
        running.process.send_signal(signal.SIGINT)
        ran = running.finish()
    assert time.monotonic() - began < SOON
    assert ran.rc == INTERRUPTED and "interrupted" in ran.said and "as they were" in ran.said, ran
    assert pulling.half_fetched() == nothing and image not in pulling.names()

    for ends in (("rollback", "--yes"), SETUP):
        with pulling.held(fleet) as running:
            running.process.kill()
            running.process.wait()
        bare.run(*ends, fleet=fleet)
        assert pulling.half_fetched() == nothing
        assert (image in pulling.names()) is (ends == SETUP)
        assert pulling.on("cat /var/lib/fleetctl/setup.json 2>/dev/null || true").count("wanted") == (
            1 if ends == SETUP else 0
        )
    bare.run("teardown", "box1", "--yes", fleet=fleet)
    assert pulling.lies() == before
