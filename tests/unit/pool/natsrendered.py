"""NATS as it is rendered, on one box or on three, with addresses, ports and stores of this machine in its files."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import natsserver
import yaml
from nats.errors import Error as NatsError
from natsserver import PROGRAM, NatsServer

from fleetctl.pool import nats
from fleetctl.render.layout import render_layout
from fleetctl.render.release import File
from fleetctl.run.fill import Filler
from fleetctl.spec.fleet import Fleet

GOLDEN = Path(__file__).parents[1] / "golden"
ODD = 'o"d\\d $pa:ss/w@rd'
"""A password with everything in it that one of the readers on its way could take for something else."""


def files_of(fleet: str, folder: Path, box: str = "a", **nats: Any) -> dict[str, str]:
    """Files of NATS on a box by their name, with these passwords in them. ``nats`` are further keys."""
    document = yaml.safe_load((GOLDEN / f"{fleet}.yaml").read_text())
    document["pool"]["nats"].update(nats)
    document["pool"].pop("bodies", None)  # its keys are no part of NATS
    for role in document["pool"]["nats"]["passwords"]:
        path = folder / role
        path.write_text(f"{ODD}{role}\n")
        document["pool"]["nats"]["passwords"][role] = {"file": str(path)}
    release = render_layout(Fleet.model_validate(document), "pool")
    fill: Callable[[File], str] = Filler()
    return {
        Path(file.path).name: fill(file) for file in release.files[box] if file.path.startswith("/etc/fleetctl/pool")
    }


def three(folder: Path) -> list[NatsServer]:
    """The cluster, each server at an address of its own, without what is about files that only a box has."""
    made = []
    ports = {"4222": natsserver.free_port(), "6222": natsserver.free_port()}
    for number, box in enumerate("abc", 1):
        home = folder / box
        home.mkdir()
        server = NatsServer(home)
        files = files_of("cluster", home, box)
        assert ODD not in files["routes.conf"]
        for name, text in files.items():
            text = re.sub(r"(?ms)^( *)tls \{.*?^\1\}\n", "", text).replace(
                "/var/lib/fleetctl-nats", str(home / "store")
            )
            text = re.sub(r"10\.0\.0\.(\d):(4222|6222)", lambda found: f"127.0.1.{found[1]}:{ports[found[2]]}", text)
            (home / name).write_text(text)
        server.url, server.port = f"nats://127.0.1.{number}:{ports['4222']}", ports["4222"]
        made.append(server)
    return made


def launch(server: NatsServer) -> None:
    """Starts it without waiting for it."""
    assert PROGRAM
    with (server.folder / "nats.log").open("ab") as log:
        server.process = subprocess.Popen([PROGRAM, "-c", str(server.config)], stdout=log, stderr=log)


@contextmanager
def cluster(folder: Path) -> Iterator[list[NatsServer]]:
    """The three of them for the length of a with block; they may not have found each other yet."""
    servers = three(folder)
    try:
        for server in servers:
            launch(server)
        yield servers
    finally:
        for server in servers:
            server.stop(signal.SIGKILL)


async def again(what: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Until the servers have found each other and chosen who leads."""
    deadline = time.monotonic() + 30
    while True:
        try:
            await what()
            return
        except (NatsError, nats.QueueError, AssertionError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)
