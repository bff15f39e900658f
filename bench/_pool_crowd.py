"""Clients of `_pool_faults.py` that check every answer, and a listener to the answers that workers send over NATS."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import select
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from urllib.parse import urlsplit

from _common import BenchError
from _pool_load import alone, request
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

from fleetctl.pool import wire

TIMEOUT = 60.0  # seconds that a client waits for an answer
_NUMBERS = count(1_000_000_000)


@dataclass
class Seen:
    """What all clients saw."""

    sent: int = 0
    answered: int = 0
    refused: Counter[int] = field(default_factory=Counter)
    """429 and 503: the request was not accepted, and the client told so."""
    lost: Counter[str] = field(default_factory=Counter)
    """No answer, or one that says that it failed, by kind."""
    wrong: Counter[str] = field(default_factory=Counter)
    """The answer to another request, or a second answer."""
    longest: float = 0.0
    """Seconds of the slowest answer."""
    numbers: set[int] = field(default_factory=set)
    """Of the requests that were answered."""


class Crowd:
    """So many clients, each with one connection and one request at a time."""

    def __init__(self, url: str, clients: int, pause: float) -> None:
        self.seen = Seen()
        self._address = urlsplit(url)
        self._pause = pause
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._client, args=(one,), daemon=True) for one in range(clients)]

    @contextmanager
    def asking(self) -> Iterator[Seen]:
        """They ask; at the end of the block each waits for its last answer."""
        for thread in self._threads:
            thread.start()
        try:
            yield self.seen
        finally:
            self._stop.set()
            end = time.monotonic() + TIMEOUT + 5
            for thread in self._threads:
                thread.join(max(0.0, end - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            raise BenchError("a client did not come back")

    def _client(self, number: int) -> None:
        rng = random.Random(f"bench pool crowd {number}")
        connection: http.client.HTTPConnection | None = None
        while not self._stop.wait(self._pause * rng.random()):
            if connection is None:
                connection = self._connect()
            if not self._ask(connection, rng):
                connection.close()
                connection = None

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(str(self._address.hostname), self._address.port, timeout=TIMEOUT)

    def _ask(self, connection: http.client.HTTPConnection, rng: random.Random) -> bool:
        """One request; whether the connection can be used again."""
        number = next(_NUMBERS)
        if connection.sock is not None and select.select([connection.sock], [], [], 0)[0]:
            more = connection.sock.recv(1)
            if more:
                self._note(lambda seen: seen.wrong.update(["a second answer"]))
            return False
        began = time.perf_counter()
        self._note(lambda seen: setattr(seen, "sent", seen.sent + 1))
        try:
            connection.request(
                "POST", "/v1/embeddings", request(alone(rng), number).body, {"content-type": "application/json"}
            )
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            kind = type(error).__name__
            self._note(lambda seen: seen.lost.update([kind]))
            return False
        took = time.perf_counter() - began
        self._note(lambda seen: self._judge(seen, number, answer.status, body, took))
        return not answer.will_close

    def _judge(self, seen: Seen, number: int, status: int, body: bytes, took: float) -> None:
        if status in (429, 503):
            seen.refused.update([status])
        elif status != 200:
            seen.lost.update([f"status {status}: {body[:120].decode(errors='replace')}"])
        elif int(json.loads(body)["data"][0]["embedding"][0]) != number:
            seen.wrong.update(["the answer to another request"])
        else:
            seen.answered += 1
            seen.numbers.add(number)
            seen.longest = max(seen.longest, took)

    def _note(self, change: Callable[[Seen], None]) -> None:
        with self._lock:
            change(self.seen)


class Listener:
    """Hears every answer that is sent over NATS: how often each was sent whole."""

    def __init__(self, url: str) -> None:
        self.answers: Counter[str] = Counter()
        self._url = url
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._listen()), daemon=True)

    @contextmanager
    def hearing(self) -> Iterator[Counter[str]]:
        """Subjects of answers, and how often."""
        self._thread.start()
        if not self._ready.wait(10):
            raise BenchError("nats-server does not answer to one who listens")
        try:
            yield self.answers
        finally:
            self._stop.set()
            self._thread.join(10)

    async def _listen(self) -> None:
        async def hear(message: Msg) -> None:
            if wire.unpack_frame(message.data).kind in (wire.Kind.WHOLE, wire.Kind.END, wire.Kind.FAILED):
                self.answers.update([message.subject])

        async def quiet(error: Exception) -> None:
            """The server goes away in one of the scenarios."""

        client = NatsClient()
        await client.connect(self._url, max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=quiet)
        await client.subscribe("answer.>", cb=hear)
        await client.flush()
        self._ready.set()
        while not self._stop.is_set():
            await asyncio.sleep(0.1)
        await client.close()
