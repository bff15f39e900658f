"""Real gateways for tests: processes beside a real nats-server, and a worker on a thread that does what a test says."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvloop
from echo_worker import Behaviour, EchoWorker, echo
from natsserver import free_port

from fleetctl.pool import wire

ROOT = Path(__file__).resolve().parents[3]
MODELS = (
    wire.PoolModel("minilm", "embed", ("all-minilm", "lab/all-MiniLM"), 20),
    wire.PoolModel("gen", "generate", ("gen",), 20),
    wire.PoolModel("order", "rerank", ("order",), 20),
    wire.PoolModel("idle", "embed", ("idle",), 20),
)
"""Nobody serves the last one."""
T = TypeVar("T")


class Thread:
    """An event loop on a thread."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it there and wait for what it returns."""
        return self.start(coroutine).result(30)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run it there."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def close(self) -> None:
        """End the loop and what runs on it."""
        self.run(self._cancel())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()

    @staticmethod
    async def _cancel() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


SERVED = ("minilm", "gen", "order")


@contextmanager
def worker(
    access: wire.NatsAccess, behaviour: Behaviour = echo, models: Sequence[str] = ("minilm", "gen", "order")
) -> Iterator[EchoWorker]:
    """A worker for the length of a with block."""
    thread = Thread()
    one = EchoWorker(access, models, behaviour)
    try:
        thread.run(one.start(20))
        yield one
    finally:
        thread.run(one.stop())
        thread.close()


class Answer:
    """What a client got."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.status = answer.status
        self.headers = answer.headers
        self.body = answer.read()

    @property
    def error(self) -> dict[str, Any]:
        """The error in the body."""
        return dict(json.loads(self.body)["error"])


class GatewayProcess:
    """One gateway, on a free port where ``listen`` says no other."""

    def __init__(
        self,
        folder: Path,
        access: wire.NatsAccess,
        name: str = "g1",
        *,
        listen: wire.Listen | None = None,
        **settings: Any,
    ) -> None:
        at = listen or wire.Listen("127.0.0.1", free_port())
        self.host, self.port = at.host, at.port
        config = wire.GatewayConfig(name, access, at, MODELS, **settings)
        file = folder / f"{name}.json"
        file.write_text(json.dumps(wire.as_json(config)))
        self._log = (folder / f"{name}.log").open("ab")
        argv = [sys.executable, "-m", "fleetctl.pool.gateway", str(file)]
        self.process = subprocess.Popen(argv, cwd=ROOT, stderr=self._log, env={**os.environ, "PYTHONPATH": str(ROOT)})

    def connect(self) -> http.client.HTTPConnection:
        """A connection of a client."""
        return http.client.HTTPConnection(self.host, self.port, timeout=30)

    def get(self, path: str) -> Answer:
        """A page."""
        client = self.connect()
        client.request("GET", path)
        return Answer(client.getresponse())

    def post(self, path: str, body: Any, headers: Mapping[str, str] = {}) -> Answer:
        """Send a request: bytes as they are, anything else as JSON."""
        client = self.connect()
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        client.request("POST", path, data, {"content-type": "application/json", **headers})
        return Answer(client.getresponse())

    def metric(self, line: str) -> float:
        """A value of the page of metrics, by all that stands before it; 0 when it is not there."""
        page = self.get("/metrics").body.decode()
        return next((float(one.rpartition(" ")[2]) for one in page.splitlines() if one.rpartition(" ")[0] == line), 0)

    def ready(self, healthy: int = 200) -> GatewayProcess:
        """Waits until its health is as it should be."""

        def is_so() -> bool:
            try:
                return self.get("/health").status == healthy
            except OSError:
                assert self.process.poll() is None, Path(self._log.name).read_text()
                return False

        until(is_so)
        return self

    def stop(self, how: int = signal.SIGTERM) -> int:
        """Ends it; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        status = self.process.wait(30)
        self._log.close()
        return status


@contextmanager
def gateway(folder: Path, access: wire.NatsAccess, name: str = "g1", **settings: Any) -> Iterator[GatewayProcess]:
    """A gateway that is ready, for the length of a with block."""
    process = GatewayProcess(folder, access, name, **settings)
    try:
        yield process.ready()
    finally:
        process.stop(signal.SIGKILL)


def until(holds: Callable[[], bool], seconds: float = 20) -> None:
    """Waits until something holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it does not come about"
        time.sleep(0.02)
