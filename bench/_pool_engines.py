#!/usr/bin/env python3
"""Stand-in engines with batches, for `bench/pool.py`: embeddings over HTTP, as vLLM answers them. No model, only time.

``python3 bench/_pool_engines.py --engine PORT … --batch 8 --pace 1``: one engine for each port of 127.0.0.1, all in
this process. A request says in the first words of its input who it is and how long it takes alone::

    {"model": "small", "input": "REQUEST MILLISECONDS word word …"}

Several inputs of one call are several members of batches, as they are for vLLM, and are answered together. An engine
does one batch after the other. A batch begins as soon as the engine is free and has ``--batch`` members, or the oldest
has waited ``GATHER`` (what Triton calls max_queue_delay); it takes what waits, in order. It takes as long as its
longest member alone, and a share (``SHARE``) of what each other member would take alone: so eight alike take 2.75 times
as long as one, and bring 2.9 times as much.

``/stats`` has what the bench counts: seconds with a batch, the same times its requests, batches, how late batches
ended, and how often each request was begun. Needs uvloop and httptools.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import cast

import httptools
import uvloop

MODEL = "small"
SHARE = 0.25
GATHER = 0.002  # seconds, before the pace
REASONS = {200: b"OK", 404: b"Not Found"}


def batch_seconds(alone: Sequence[float]) -> float:
    """How long a batch takes, from what its members would take alone."""
    longest = max(alone)
    return longest + SHARE * (sum(alone) - longest)


class Call:
    """What a client asked in one call, and what is not done of it."""

    def __init__(self, client: Client, inputs: Sequence[str]) -> None:
        self.client = client
        self.since = time.perf_counter()
        self.members = [Member(self, *text.split(" ", 2)[:2]) for text in inputs]
        self.left = len(inputs)
        self.tokens = sum(text.count(" ") for text in inputs)


class Member:
    """One input at an engine."""

    __slots__ = ("alone", "call", "request")

    def __init__(self, call: Call, request: str, milliseconds: str) -> None:
        self.call, self.request, self.alone = call, request, float(milliseconds) / 1000


class Engine:
    """One engine: what waits, and the batch that runs."""

    def __init__(self, batch: int, pace: float) -> None:
        self.most = batch
        self.pace = pace
        self.waiting: deque[Member] = deque()
        self.running: list[Member] = []
        self.begun: Counter[str] = Counter()
        self.batches = self.answered = 0
        self.late = 0.0
        self._busy = self._filled = 0.0
        self._since = 0.0
        self._alarm: asyncio.TimerHandle | None = None

    def add(self, call: Call) -> None:
        """A call has come."""
        self.waiting.extend(call.members)
        self.look()

    def drop(self, client: Client) -> None:
        """A client has gone; what it waits for and has not begun is not done."""
        self.waiting = deque(member for member in self.waiting if member.call.client is not client)

    def look(self) -> None:
        """Begin a batch if it is time."""
        if self.running or not self.waiting:
            return
        waited = time.perf_counter() - self.waiting[0].call.since
        if len(self.waiting) < self.most and waited < GATHER * self.pace:
            if self._alarm is None:
                self._alarm = asyncio.get_running_loop().call_later(GATHER * self.pace - waited + 0.0005, self._rang)
            return
        self.running = [self.waiting.popleft() for _ in range(min(self.most, len(self.waiting)))]
        self.begun.update(member.request for member in self.running)
        self.batches += 1
        self._since = time.perf_counter()
        took = self.pace * batch_seconds([member.alone for member in self.running])
        asyncio.get_running_loop().call_later(took, self._over, took)

    def _rang(self) -> None:
        self._alarm = None
        self.look()

    def _over(self, meant: float) -> None:
        took = time.perf_counter() - self._since
        self.late += max(0.0, took - meant)
        self._busy += took
        self._filled += took * len(self.running)
        done, self.running = self.running, []
        self.answered += len(done)
        for member in done:
            member.call.left -= 1
            if not member.call.left:
                member.call.client.answer(member.call)
        self.look()

    def stats(self) -> dict[str, object]:
        """Everything since the start. ``filled``: seconds of each request in a batch; ``now``: seconds of its clock."""
        now = time.perf_counter()
        since = now - self._since if self.running else 0.0
        return {
            "now": now,
            "filled": self._filled + since * len(self.running),
            "busy": self._busy + since,
            "late": self.late,
            "batches": self.batches,
            "answered": self.answered,
            "waiting": len(self.waiting),
            "running": len(self.running),
        }


class Client(asyncio.Protocol):
    """One connection to an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._path, self._body = b"", b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._engine.drop(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_message_begin(self) -> None:
        self._path, self._body = b"", b""

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._path == b"/v1/embeddings":
            told = json.loads(self._body)["input"]
            self._engine.add(Call(self, [told] if isinstance(told, str) else told))
        else:
            self._page(self._path.partition(b"?")[0].decode())

    def answer(self, call: Call) -> None:
        """The embeddings: the first number of each is who asked."""
        vectors = [[float(member.request), *([0.03125] * 15)] for member in call.members]
        told = {
            "id": f"embd-{call.members[0].request}",
            "object": "list",
            "model": MODEL,
            "data": [
                {"index": index, "object": "embedding", "embedding": vector} for index, vector in enumerate(vectors)
            ],
            "usage": {"prompt_tokens": call.tokens, "total_tokens": call.tokens},
        }
        self._write(200, json.dumps(told).encode())

    def _page(self, path: str) -> None:
        engine = self._engine
        if path == "/health":
            self._write(200, b"")
        elif path == "/v1/models":
            card = {"id": MODEL, "object": "model", "owned_by": "vllm", "max_model_len": 8192}
            self._write(200, json.dumps({"object": "list", "data": [card]}).encode())
        elif path == "/version":
            self._write(200, b'{"version":"0.32.0"}')
        elif path == "/metrics":
            name = f'model_name="{MODEL}",engine="0"'
            lines = (
                f"vllm:num_requests_running{{{name}}} {len(engine.running)}",
                f"vllm:num_requests_waiting{{{name}}} {len(engine.waiting)}",
                f"vllm:kv_cache_usage_perc{{{name}}} 0",
                f'vllm:request_success_total{{finished_reason="stop",{name}}} {engine.answered}',
            )
            self._write(200, "\n".join((*lines, "")).encode(), b"text/plain")
        elif path == "/stats":
            self._write(200, json.dumps(engine.stats()).encode())
        elif path == "/begun":
            self._write(200, json.dumps(engine.begun).encode())
        else:
            self._write(404, b'{"error":{"message":"not here","type":"NotFoundError","code":404}}')

    def _write(self, status: int, body: bytes, kind: bytes = b"application/json") -> None:
        head = b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
        self._transport.write(head % (status, REASONS[status], kind, len(body)) + body)


async def serve(ports: Sequence[int], batch: int, pace: float) -> None:
    """Until it is killed."""
    loop = asyncio.get_running_loop()
    servers = []
    for port in ports:
        engine = Engine(batch, pace)
        servers.append(await loop.create_server(lambda engine=engine: Client(engine), "127.0.0.1", port, backlog=1024))  # type: ignore[misc]
    await asyncio.gather(*(server.serve_forever() for server in servers))


def main() -> None:
    parser = argparse.ArgumentParser(description="Stand-in engines with batches.")
    parser.add_argument("--engine", type=int, action="append", required=True, metavar="PORT")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--pace", type=float, default=1.0, help="times as long as requests say")
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(options.engine, options.batch, options.pace))


if __name__ == "__main__":
    main()
