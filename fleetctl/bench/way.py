"""How an engine is reached from here: at its own address, or through a connection to its box."""

from __future__ import annotations

import contextlib
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from fleetctl.bench.connection import Asker
from fleetctl.bench.endpoint import Endpoint
from fleetctl.bench.load import run
from fleetctl.errors import RefusedError

_DIRECT = 1.0  # seconds for a connection to a box's own address
_ROUNDS = 20  # questions that show what a way to the engine costs

Tunnel = Callable[[str, int], AbstractContextManager[Path]]


@dataclass(frozen=True)
class Way:
    """How an engine is reached, in words, and the median seconds of one question and its answer."""

    endpoint: Endpoint
    told: str
    round_trip: float


@contextlib.contextmanager
def way_to(plain: Endpoint, box: str, tunnel: Tunnel) -> Iterator[Way]:
    """The engine at its own address where this machine reaches that, else through the SSH connection to its ``box``."""
    if answers(plain):
        took = round_trip(plain)
        yield Way(plain, f"directly at {plain.authority}: a round trip takes {1000 * took:.1f} ms", took)
        return
    with tunnel(plain.host, plain.port) as path:
        through = replace(plain, socket=path)
        took = round_trip(through)
        told = (
            f"through the SSH connection to {box}, since {plain.authority} does not answer from here: a round trip "
            f"takes {1000 * took:.1f} ms, which is in every first token; encrypting every piece costs this machine CPU"
        )
        yield Way(through, told, took)


def answers(endpoint: Endpoint) -> bool:
    """Whether something takes connections there."""
    try:
        with socket.create_connection((endpoint.host, endpoint.port), timeout=_DIRECT):
            return True
    except OSError:
        return False


def round_trip(endpoint: Endpoint) -> float:
    """Median seconds of a small question and its answer. Raises RefusedError when there is none."""

    async def ask() -> list[float]:
        asker = Asker(endpoint, timeout=10.0)
        took = []
        try:
            for _ in range(_ROUNDS):
                page = await asker.get("/health")
                if page.error is not None and not page.status:
                    raise RefusedError(f"{endpoint.url} does not answer: {page.error}")
                took.append((page.ended or time.perf_counter()) - page.sent)
        finally:
            asker.close()
        return took

    return statistics.median(run(ask()))
