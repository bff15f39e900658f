"""OpenAI chat traffic to one address, with a record of every request.

`Traffic` is an open loop: requests start at their times whether or not earlier ones were answered, as those of many
independent clients do. `Crowd` is a number of clients that each wait for their answer before they ask again. Nothing is
sent twice, so that whatever goes wrong shows.

Example::

    with Traffic("http://10.77.0.11:8080", "standin", rate=8.0) as traffic:
        time.sleep(5)
    assert not [request for request in traffic.requests() if request.failed]
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import httpx

IDLE_EXPIRY = 20.0
"""Seconds after which an unused connection is closed: before the proxy closes it, as clients are set up to."""

AGAIN_AFTER = 0.5
"""Seconds before a client asks once more: what the OpenAI client begins with."""

PROBES = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]
"""A client that only waits learns by these, within some 2 s, that its connection is known to nobody any more."""


@dataclass
class Request:
    """One request and what became of it. Times are epoch seconds, None for what has not happened.

    ``begun``: something of an answer has come. Neither the comment lines that keep a waiting stream alive nor an error
    is one. ``first_byte`` is when the first byte of its body came; ``error`` says in words what is wrong with it;
    ``retried`` says why the client asked once more.
    """

    number: int
    streamed: bool
    start: float
    first_byte: float | None = None
    end: float | None = None
    status: int | None = None
    error: str | None = None
    begun: bool = False
    retried: str | None = None

    @property
    def answered(self) -> bool:
        """A whole answer with status 200 has come."""
        return self.end is not None and self.error is None

    @property
    def failed(self) -> bool:
        """It is over without a whole answer with status 200."""
        return self.end is not None and self.error is not None

    @property
    def broken(self) -> bool:
        """The answer had begun, and did not come to its end."""
        return self.failed and self.begun

    @property
    def failed_before_first_byte(self) -> bool:
        """It failed without a byte of an answer."""
        return self.failed and not self.begun

    @property
    def waiting(self) -> bool:
        """Nothing of the answer has come yet."""
        return self.end is None and self.first_byte is None


@dataclass(frozen=True)
class Counts:
    """How many requests were sent, and how many of them are answered, waiting and failed."""

    sent: int
    answered: int
    waiting: int
    failed: int


class Traffic:
    """Context manager: traffic flows inside, and on leaving it every request sent has come to its end.

    ``rate`` is in requests/s; every second one is streamed; each asks for ``max_tokens`` tokens. A request without
    a byte for ``patience`` seconds is given up.
    """

    def __init__(
        self, url: str, model: str, *, rate: float = 8.0, max_tokens: int = 8, patience: float = 180.0
    ) -> None:
        self._url = f"{url.rstrip('/')}/v1/chat/completions"
        self._model = model
        self._interval = 1.0 / rate
        self._max_tokens = max_tokens
        self._timeout = httpx.Timeout(patience, connect=10.0)
        self._socket_options: list[tuple[int, int, int]] = []
        self._requests: list[Request] = []
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="traffic")
        self._running: Future[None] | None = None

    def __enter__(self) -> Traffic:
        self._running = self._pool.submit(self._loop.run_until_complete, self._drive())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._running is not None
        if not self._running.done():
            self._loop.call_soon_threadsafe(self._over.set)
        try:
            self._running.result()
        finally:
            self._pool.shutdown()
            self._loop.close()

    def requests(self) -> list[Request]:
        """Every request so far, in the order they were sent; those on their way still change."""
        return list(self._requests)

    def counts(self) -> Counts:
        """Where the requests are at this moment."""
        now = self.requests()
        return Counts(
            sent=len(now),
            answered=sum(request.answered for request in now),
            waiting=sum(request.waiting for request in now),
            failed=sum(request.failed for request in now),
        )

    async def _drive(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=IDLE_EXPIRY)
        transport = httpx.AsyncHTTPTransport(limits=limits, trust_env=False, socket_options=self._socket_options)
        async with (
            httpx.AsyncClient(transport=transport, timeout=self._timeout, trust_env=False) as client,
            asyncio.TaskGroup() as group,
        ):
            await self._flow(client, group)

    async def _flow(self, client: httpx.AsyncClient, group: asyncio.TaskGroup) -> None:
        """Start requests as tasks of the group until it is over."""
        begin, number = self._loop.time(), 0
        while not await self._over_before(begin + number * self._interval):
            group.create_task(self._ask(client, self._new(streamed=number % 2 == 1)))
            number += 1

    def _new(self, *, streamed: bool) -> Request:
        self._requests.append(Request(len(self._requests), streamed, start=time.time()))
        return self._requests[-1]

    async def _over_before(self, due: float) -> bool:
        """Wait until the time that a request is due. True when the traffic is to end before."""
        try:
            async with asyncio.timeout_at(due):
                await self._over.wait()
        except TimeoutError:
            return False
        return True

    async def _ask(self, client: httpx.AsyncClient, request: Request) -> None:
        question: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": "user", "content": f"Question {request.number}: what is held while engines change?"}],
            "max_tokens": self._max_tokens,
        }
        if request.streamed:
            question["stream"] = True
        body = bytearray()
        try:
            await self._exchange(client, question, request, body)
        except httpx.HTTPError as error:
            after = f"after {len(body)} bytes" if body else "before any byte"
            request.error = f"{type(error).__name__} {after}: {error}"
        request.end = time.time()

    async def _exchange(
        self, client: httpx.AsyncClient, question: dict[str, Any], request: Request, body: bytearray
    ) -> None:
        async with client.stream("POST", self._url, json=question) as answer:
            request.status = answer.status_code
            request.begun = request.status == 200
            async for piece in answer.aiter_raw():
                body += piece
                if request.first_byte is None:
                    self._note(request, body)
        request.error = fault(answer.status_code, bytes(body), streamed=request.streamed)

    @staticmethod
    def _note(request: Request, body: bytearray) -> None:
        """The first bytes of the body: whether they are an answer's."""
        if request.status == 200 and request.streamed:
            first = next((line for line in bytes(body).splitlines() if line and not line.startswith(b":")), b"")
            request.begun = bool(first) and not first.startswith(b'data: {"error"')
        if request.begun or request.status != 200:
            request.first_byte = time.time()


class Crowd(Traffic):
    """``clients`` that each ask again once they have their answer, though not twice within ``period`` seconds.

    Half of them stream. The period keeps a client that is refused at once from asking more often than one that is
    served. With ``retry`` a client whose connection was refused, or broke before the first byte of an answer, asks once
    more, as HTTP clients do, and lets its kernel ask whether the other side is still there; what it waits is counted
    from the first time.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        clients: int = 20,
        period: float = 0.8,
        max_tokens: int = 32,
        patience: float = 180.0,
        retry: bool = False,
    ) -> None:
        super().__init__(url, model, max_tokens=max_tokens, patience=patience)
        self._clients, self._period, self._retry = clients, period, retry
        self._socket_options = PROBES if retry else []

    async def _flow(self, client: httpx.AsyncClient, group: asyncio.TaskGroup) -> None:
        for number in range(self._clients):
            offset = self._period * number / self._clients
            group.create_task(self._come_and_go(client, streamed=number % 2 == 1, offset=offset))

    async def _come_and_go(self, client: httpx.AsyncClient, *, streamed: bool, offset: float) -> None:
        due = self._loop.time() + offset
        while not await self._over_before(due):
            due = self._loop.time() + self._period
            await self._ask(client, self._new(streamed=streamed))

    async def _exchange(
        self, client: httpx.AsyncClient, question: dict[str, Any], request: Request, body: bytearray
    ) -> None:
        try:
            await super()._exchange(client, question, request, body)
        except httpx.TransportError as error:
            if not self._retry or request.status is not None:
                raise
            request.retried = type(error).__name__
            await asyncio.sleep(AGAIN_AFTER)
            await super()._exchange(client, question, request, body)


def fault(status: int, body: bytes, *, streamed: bool) -> str | None:
    """What is wrong with an answer that came to its end; None for a complete one with status 200."""
    if status != 200:
        return f"status {status}: {body[:200].decode('utf-8', 'replace').strip()}"
    try:
        return _stream_fault(body.decode()) if streamed else _whole_fault(body)
    except (ValueError, AttributeError, LookupError, TypeError):
        return f"not an answer: {body[:200].decode('utf-8', 'replace').strip()}"


def _whole_fault(body: bytes) -> str | None:
    choice = json.loads(body)["choices"][0]
    if not choice["message"]["content"]:
        return "an answer without text"
    return _ending(choice["finish_reason"], "an answer")


def _stream_fault(body: str) -> str | None:
    events = [line[5:].strip() for line in body.splitlines() if line.startswith("data:")]
    if not events or events[-1] != "[DONE]":
        return f"a stream that broke off after {len(events)} events"
    choices = []
    for event in events[:-1]:
        told = json.loads(event)
        if "error" in told:
            return f"an error in the stream: {event[:200]}"
        choices += told.get("choices", [])
    if not any(choice["delta"].get("content") for choice in choices):
        return "a stream without text"
    return _ending(choices[-1]["finish_reason"], "a stream")


def _ending(reason: str | None, what: str) -> str | None:
    """An engine that is stopped ends what it has begun with the reason `abort`."""
    return {None: f"{what} that did not finish", "abort": f"{what} that the engine aborted"}.get(reason)
