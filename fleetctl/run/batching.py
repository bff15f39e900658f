"""Batch jobs from the operator's machine: the way to a box's NATS through SSH, kept up across its restarts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nats.aio.client import Client

from fleetctl.errors import BoxError, FleetError, SpecError
from fleetctl.facts.adapters import AdaptersFacts
from fleetctl.pool import wire
from fleetctl.pool.batch.lines import Targets
from fleetctl.pool.nats import QueueError, connect
from fleetctl.remote.connection import BoxConnection
from fleetctl.remote.errors import SeveralBoxesError
from fleetctl.run.subject import Subject
from fleetctl.spec.fleet import Fleet
from fleetctl.spec.fleet_pool import Pool
from fleetctl.spec.problems import did_you_mean

OPERATOR = "operator"
"""The role in NATS of whoever submits jobs."""
FIRST = 8.0
"""Seconds in which NATS has to answer at first."""
RENEW = 5.0
"""Seconds without NATS after which the SSH connection is looked at."""


@dataclass(frozen=True)
class Way:
    """How NATS is reached. ``socket`` leads to it; None: straight. ``renew`` makes the way anew where it broke."""

    access: wire.NatsAccess
    secret: str | None = field(repr=False)
    socket: Callable[[], Path] | None = None
    renew: Callable[[], None] | None = None
    store: int = 0
    """Bytes that NATS keeps at most; 0: not known."""


def adapters_of(subject: Subject) -> dict[str, str]:
    """The LoRA adapters of the fleet, as the boxes that can be reached know them: name → key of its model."""
    if all(model.loras is None for model in subject.fleet.models.values()):
        return {}
    told = [AdaptersFacts.model_validate(box.call("adapters_index")) for box in subject.boxes.values()]
    latest = max(told, key=lambda one: one.serial, default=AdaptersFacts())
    return {name: model for model, entries in latest.adapters.items() for name in entries}


def targets_of(fleet: Fleet, model: str | None, adapters: Mapping[str, str] | None = None) -> Targets:
    """Which names a file may have for models, those of LoRA adapters among them.

    Raises SpecError when ``model`` (--model) is none of them; as long as ``adapters`` are not known (None), only where
    it cannot be that of one either.
    """
    if adapters is None and any(one.loras is not None for one in fleet.models.values()):
        model = None
    names = {key: key for key in fleet.models}
    for key, entry in fleet.models.items():
        names |= dict.fromkeys(entry.served_as, key)
    served = {key: entry.served_as[0] if entry.served_as else key for key, entry in fleet.models.items()}
    names = {**{name: key for name, key in (adapters or {}).items() if key in fleet.models}, **names}
    chosen = names.get(model) if model is not None else ""
    if chosen is None:
        raise SpecError(f"--model {model}: no such model in fleet.yaml", hint=did_you_mean(str(model), list(names)))
    own = {name for key, entry in fleet.models.items() for name in (key, *entry.served_as)}
    return Targets(names, served, chosen, model if model is not None and model not in own else "")


def boxes_of(fleet: Fleet) -> tuple[str, ...]:
    """Boxes that run NATS. Raises SpecError where fleet.yaml has no pool."""
    return _pool(fleet).nats.boxes


def _pool(fleet: Fleet) -> Pool:
    if fleet.pool is None:
        raise SpecError(
            "this fleet has no queue for batch jobs: fleet.yaml has no `pool:`",
            hint="docs/batch.md shows what it takes",
        )
    return fleet.pool


class _Tunnel:
    """A Unix socket that leads to NATS on the first box that can be reached, made again when that one is lost."""

    def __init__(self, subject: Subject, boxes: tuple[str, ...], port: int) -> None:
        self._subject, self._boxes, self._port = subject, boxes, port
        self._stack = contextlib.ExitStack()
        self._own: dict[str, BoxConnection] = {}
        self._turn = 0
        self._path: Path | None = None
        self._box = ""

    @property
    def path(self) -> Path:
        """The socket as it is now."""
        if self._path is None:
            raise OSError(f"no box that runs NATS can be reached: {', '.join(self._boxes)}")
        return self._path

    def open(self) -> None:
        """Make it. Raises the error of each box when none can be reached."""
        errors: dict[str, FleetError] = {}
        for offset in range(len(self._boxes)):
            box = self._boxes[(self._turn + offset) % len(self._boxes)]
            try:
                connection = self._connection(box)
                address = self._subject.fleet.boxes[box].address
                self._path = self._stack.enter_context(connection.tunnel(address, self._port))
                self._box = box
                return
            except FleetError as error:
                errors[box] = error
        raise SeveralBoxesError(errors)

    def _connection(self, box: str) -> BoxConnection:
        if box in self._own:
            self._own[box].reconnect()
            return self._own[box]
        if box in self._subject.boxes:
            connection = self._subject.boxes[box]
            connection.reconnect()
            return connection
        if self._subject.connect is None:
            raise self._subject.unreachable.get(box) or BoxError(box, "it cannot be reached")
        self._own[box] = self._subject.connect(box)
        return self._own[box]

    def renew(self) -> None:
        """Make it again, on the next box where there are several. One that still cannot be reached is tried later."""
        self._stack.close()
        self._path = None
        self._turn = (self._boxes.index(self._box) + 1) if self._box in self._boxes else self._turn + 1
        with contextlib.suppress(FleetError):
            self.open()

    def close(self) -> None:
        """End it."""
        self._stack.close()
        for connection in self._own.values():
            connection.close()


@contextlib.contextmanager
def way(subject: Subject) -> Iterator[Way]:
    """The way to the fleet's NATS, through SSH to a box that runs it. Raises SpecError or BoxError."""
    nats = _pool(subject.fleet).nats
    boxes = boxes_of(subject.fleet)
    secret = nats.passwords.operator.read()
    scheme, ca = ("nats", "") if nats.tls is None else ("tls", nats.tls.ca or "")
    servers = tuple(f"{scheme}://{subject.fleet.boxes[box].address}:{nats.port}" for box in boxes)
    # Through the tunnel only one server is reached at a time, whatever the URL says.
    access = wire.NatsAccess(servers[:1], OPERATOR, ca=ca if ca and Path(ca).exists() else "")
    tunnel = _Tunnel(subject, boxes, nats.port)
    try:
        tunnel.open()
        yield Way(access, secret, lambda: tunnel.path, tunnel.renew, nats.store)
    finally:
        tunnel.close()


@contextlib.asynccontextmanager
async def connected(way: Way) -> AsyncIterator[Client]:
    """A connection to NATS. What goes wrong in the first seconds is raised; later it comes back by itself."""
    client = await connect(way.access, "fleetctl batch", wait=FIRST, secret=way.secret, socket=way.socket)
    try:
        yield client
    finally:
        with contextlib.suppress(TimeoutError, OSError):
            await asyncio.wait_for(client.close(), 2.0)


def renewing(way: Way) -> Callable[[float], Awaitable[None]]:
    """Told for how many seconds NATS has been away, looks after the way once in a while."""
    tried = 0.0

    async def hear(away: float) -> None:
        nonlocal tried
        if away == 0.0:
            tried = 0.0
        elif way.renew is not None and away - tried > RENEW:
            tried = away
            await asyncio.to_thread(way.renew)

    return hear


def straight(url: str, password: str | None) -> Way:
    """A server by its URL, without a fleet. Raises SpecError for what is no URL of one."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        host, port, user = parts.hostname, parts.port or 4222, parts.username or ""
    except ValueError as error:
        raise SpecError(f"--nats: {error}") from None
    if parts.scheme not in ("nats", "tls") or not host or parts.path.strip("/") or parts.password:
        raise SpecError(
            "--nats is like nats://USER@HOST:4222 or tls://…, without a password",
            hint="--password-env names the environment variable with it",
        )
    shown = f"[{host}]" if ":" in host else host
    if user and password is None:
        raise QueueError(f"--nats names the user {user} and nothing its password", hint="--password-env NAME")
    return Way(wire.NatsAccess((f"{parts.scheme}://{shown}:{port}",), user), password)
