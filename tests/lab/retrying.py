"""Clients that ask again once, as HTTP clients do, when a connection was refused or broke before the first byte."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx

AGAIN_AFTER = 0.5  # seconds before the second attempt: what the OpenAI client begins with
# A box without power sends nothing, not even a reset. Clients that let their kernel ask get one from the next box.
KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]


@dataclass
class Told:
    """What happened to the requests: ``failed`` twice before a first byte, ``broken`` after one."""

    requests: int = 0
    retried: int = 0
    failed: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)
    """When a request was sent, and the seconds until the first byte of its answer, both attempts together."""

    @property
    def longest(self) -> float:
        return max((wait for _, wait in self.waits), default=0.0)

    @property
    def usual(self) -> float:
        """The median wait: what an answer takes when nothing is wrong."""
        return sorted(wait for _, wait in self.waits)[len(self.waits) // 2]

    def __str__(self) -> str:
        return (
            f"{self.requests} requests, {self.retried} asked again, {len(self.failed)} failed before the first byte, "
            f"{len(self.broken)} broken streams, longest wait {self.longest:.2f} s (usual {self.usual:.2f} s)"
        )


async def _customer(
    url: str, ask: Mapping[str, object], told: Told, over: asyncio.Event, number: int, attempts: int
) -> None:
    dice = random.Random(number)
    transport = httpx.AsyncHTTPTransport(socket_options=KEEPALIVE)
    async with httpx.AsyncClient(transport=transport, timeout=httpx.Timeout(60, connect=10), trust_env=False) as http:
        while not over.is_set():
            asked = {**ask, "stream": True} if dice.random() < 0.5 else ask
            told.requests += 1
            start = time.monotonic()
            for attempt in range(1, attempts + 1):
                status, first = 0, None
                try:
                    async with http.stream("POST", f"{url}/v1/chat/completions", json=asked) as answer:
                        status = answer.status_code
                        async for _ in answer.aiter_raw():
                            if first is None:
                                first = time.monotonic()
                                told.waits.append((start, first - start))
                    if status != 200:
                        told.failed.append(f"status {status}")
                    break
                except httpx.HTTPError as error:
                    if status:
                        told.broken.append(repr(error))
                        break
                    if attempt == attempts:
                        told.failed.append(f"{error!r} after {time.monotonic() - start:.2f} s")
                        break
                told.retried += 1
                await asyncio.sleep(AGAIN_AFTER)


@asynccontextmanager
async def retrying_load(
    url: str, ask: Mapping[str, object], clients: int = 20, attempts: int = 2
) -> AsyncIterator[Told]:
    """Clients that ask again and again, half of them streaming, until the end of the block."""
    told, over = Told(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(_customer(url, ask, told, over, number, attempts))
        try:
            yield told
        finally:
            over.set()
