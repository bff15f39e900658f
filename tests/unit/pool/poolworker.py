"""What the worker's tests have in common: engines as processes in place of units, and a gateway's side of the queue."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from natsserver import free_port

from fleetctl.pool import nats, wire
from fleetctl.pool.client import Client as Http
from fleetctl.pool.worker import pull
from fleetctl.pool.worker.units import UnitError
from fleetctl.pool.worker.worker import Worker

HERE = Path(__file__).parent
pull.STANDS, pull.LATE = 0.2, 0.05  # so that the end of a worker is not waited for
FINAL = (wire.Kind.WHOLE, wire.Kind.END, wire.Kind.FAILED)


class ProcessUnits:
    """Units whose processes are stand-ins; ``restart``: what systemd's Restart=always would do. A unit is the path of
    its socket, so that a worker which is started again finds what runs."""

    def __init__(self, *, restart: bool = False, broken: tuple[str, ...] = ()) -> None:
        self.restart = restart
        self.broken = broken
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.wanted: set[str] = set()
        self.starts: list[str] = []

    async def start(self, unit: str) -> None:
        """Start the stand-in."""
        if unit in self.broken:
            raise UnitError(f"{unit} cannot be started: it is broken")
        self.wanted.add(unit)
        self.spawn(unit)

    async def stop(self, unit: str, limit: float) -> None:
        """Stop it."""
        self.wanted.discard(unit)
        process = self.processes.pop(unit, None)
        if process is not None:
            process.terminate()
            await asyncio.to_thread(process.wait, limit)

    async def is_active(self, unit: str) -> bool:
        """Whether it runs; with ``restart`` it does so again."""
        process = self.processes.get(unit)
        if process is not None and process.poll() is None:
            return True
        if self.restart and unit in self.wanted:
            self.spawn(unit)
            return True
        return False

    def spawn(self, unit: str) -> None:
        """A process that listens at the unit's socket."""
        self.starts.append(unit)
        command = [sys.executable, str(HERE / "standin_engine.py"), unit, Path(unit).stem]
        self.processes[unit] = subprocess.Popen(command, env=environment())

    def kill(self, unit: str) -> None:
        """As the kernel does when memory is short."""
        self.processes[unit].kill()
        self.processes[unit].wait(10)

    def end(self) -> None:
        """Kill all."""
        for process in self.processes.values():
            process.kill()
            process.wait(10)


def environment() -> dict[str, str]:
    """With fleetctl to be imported."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *(path for path in sys.path if path)])}


def engine(folder: Path, model: str, number: int = 0, **more: Any) -> wire.PoolEngine:
    """An engine whose unit is its socket."""
    socket = str(folder / f"{model}{number or ''}.sock")
    values = {"task": "embed", "memory": 10, "load_limit": 20.0, "stop_limit": 10.0, **more}
    return wire.PoolEngine(model=model, served_as=(model,), unit=socket, address=f"unix:{socket}", **values)


def config(
    access: wire.NatsAccess, *engines: wire.PoolEngine, box: str = "box1", memory: int = 100, control: str = ""
) -> wire.WorkerConfig:
    """A worker's configuration."""
    return wire.WorkerConfig(box, access, wire.Listen("127.0.0.1", free_port()), memory, engines, control=control)


@asynccontextmanager
async def working(settings: wire.WorkerConfig, units: ProcessUnits | None = None) -> AsyncIterator[Worker]:
    """A worker within this process, all of whose pinned models are loaded."""
    own = units or ProcessUnits()
    worker = Worker(settings, own)
    try:
        await worker.begin()
        await until(lambda: all(e.serves for d in worker.desks.values() for e in d.engines if e.pinned))
        yield worker
        await worker.end(5.0)
    finally:
        if units is None:
            own.end()


async def until(true: Any, seconds: float = 20.0) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come about"
        await asyncio.sleep(0.01)


class Asker:
    """A gateway's side: publishes requests, collects the frames of their answers."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.js = client.jetstream()
        self.frames: dict[str, list[wire.Frame]] = {}
        self.others: list[wire.Frame] = []
        """Second answers that were other than the first."""
        self.count = 0

    async def hear(self, message: Msg) -> None:
        """A frame has come. Once an answer is over, a gateway drops what is sent again, which has to be the same."""
        frame = wire.unpack_frame(message.data)
        frames = self.frames.setdefault(message.subject.rpartition(".")[2], [])
        if not any(one.kind in FINAL for one in frames):
            frames.append(frame)
        elif frame not in frames:
            self.others.append(frame)

    async def send(
        self, model: str, text: Any, *, path: str = "/v1/embeddings", deadline: float = 30.0, **more: Any
    ) -> str:
        """Publish a request; its id."""
        self.count += 1
        identity = more.pop("id", f"r{self.count}")
        body = more.pop("raw", None)
        extra = more.pop("extra", {})
        if body is None:
            key = "input" if path == "/v1/embeddings" else "prompt"
            body = json.dumps(
                {"model": model, key: text, **({"stream": True} if more.get("stream") else {}), **extra}
            ).encode()
        now = int(time.time() * 1000)
        values = {"sent": now, **more}
        envelope = wire.Envelope(
            identity, model, path, wire.answer_subject("g", identity), now + int(deadline * 1000), len(body), **values
        )
        data = envelope.pack(b"" if envelope.body else body)
        await self.js.publish(wire.subject(model), data, headers={"Nats-Msg-Id": identity})
        return identity

    async def answer(self, identity: str, seconds: float = 20.0) -> list[wire.Frame]:
        """All frames of an answer that is over."""
        await until(lambda: any(f.kind in FINAL for f in self.frames.get(identity, [])), seconds)
        return self.frames[identity]

    async def json(self, identity: str) -> Any:
        """A whole answer."""
        frames = await self.answer(identity)
        assert [frame.kind for frame in frames] == [wire.Kind.WHOLE], frames
        assert frames[0].status == 200, frames[0]
        return json.loads(frames[0].body)

    async def embedding(self, identity: str) -> list[list[float]]:
        """The vectors of an answer."""
        return [one["embedding"] for one in (await self.json(identity))["data"]]

    async def waiting(self) -> int:
        """Requests that are not acknowledged."""
        return (await self.js.stream_info(wire.WORK)).state.messages


@asynccontextmanager
async def asking(access: wire.NatsAccess) -> AsyncIterator[Asker]:
    """A gateway's side for the length of a with block."""
    client = await nats.connect(access, "test", wait=10)
    asker = Asker(client)
    await nats.make_streams(asker.js)
    await client.subscribe(wire.answers_of("g"), cb=asker.hear)
    yield asker
    with contextlib.suppress(Exception):
        await client.close()


async def seen(unit: str) -> dict[str, int]:
    """What an engine has counted."""
    http = Http(f"unix:{unit}")
    try:
        return json.loads((await http.whole("GET", "/seen")).body)  # type: ignore[no-any-return]
    finally:
        http.close()


class WorkerProcess:
    """A worker as a process of its own, that can be killed. Its engines are found by their sockets."""

    def __init__(self, folder: Path, settings: wire.WorkerConfig, name: str) -> None:
        self.file = folder / f"{name}.json"
        self.file.write_text(json.dumps(wire.as_json(settings)))
        self.log = folder / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        with self.log.open("ab") as log:
            command = [sys.executable, str(HERE / "worker_process.py"), str(self.file)]
            self.process = subprocess.Popen(command, env=environment(), stdout=log, stderr=log)

    def stop(self, how: int = signal.SIGKILL) -> int:
        """End it; its exit status."""
        assert self.process
        self.process.send_signal(how)
        return self.process.wait(30)


def phases(worker: Worker) -> dict[str, str]:
    """Model → phase."""
    return {one.name: one.phase for desk in worker.desks.values() for one in desk.engines}
