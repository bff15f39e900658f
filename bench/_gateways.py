"""A gateway of the pool with its queue, and litellm's proxy, in front of the same stand-in; and what loads them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import nats
import uvloop
from _common import CHECKOUT, BenchError, make_venv, run
from _engines import free_port
from _serving import answers, listens, serving

from fleetctl.bench.connection import Asker
from fleetctl.bench.endpoint import parse_endpoint
from fleetctl.bench.exchange import Request, Window
from fleetctl.pool import wire

MODEL = "lab/embed"
KEPT, REMOVED = "lab/kept", "lab/removed"  # what uploads are for: other responders have them
BODY = json.dumps({"model": MODEL, "input": ["The quick brown fox jumps over the lazy dog. " * 4]}).encode()
UPLOAD = 32 << 20
SETTLE = 0.1  # seconds in which what was under way comes to its end
START = 120.0  # seconds that a proxy may take to serve: litellm reads much code first


@dataclass(frozen=True)
class Proxy:
    """One that serves. ``pids``: the processes whose time counts."""

    name: str
    port: int
    pids: Sequence[int]

    @property
    def cpu(self) -> float:
        """Seconds of processor time that it has taken, its children's included."""
        return sum(_cpu(pid) for pid in self.pids)


@dataclass(frozen=True)
class Load:
    """What came of some requests: seconds of each, and of all."""

    latencies: Sequence[float]
    seconds: float

    @property
    def rate(self) -> float:
        """Requests per second."""
        return len(self.latencies) / self.seconds

    def at(self, share: float) -> float:
        """A percentile in milliseconds."""
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


# What is measured -----------------------------------------------------------------------------------------------------


@contextmanager
def standin(core: int) -> Iterator[int]:
    """The stand-in that answers at once, over HTTP; its port."""
    port = free_port()
    argv = [sys.executable, str(CHECKOUT / "bench/_answers.py"), str(port)]
    with serving(pinned(core, argv), answers(f"http://127.0.0.1:{port}/health")):
        yield port


@contextmanager
def queue(folder: Path) -> Iterator[tuple[str, int]]:
    """A nats-server with JetStream on this disk; its URL and its process."""
    program = shutil.which("nats-server", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if program is None:
        raise BenchError("nats-server is not installed: apt-get install nats-server")
    port = free_port()
    config = folder / "nats.conf"
    config.write_text(f'host: 127.0.0.1\nport: {port}\njetstream {{ store_dir: "{folder}/store" }}\n')
    with started([program, "-c", str(config)], port) as pid:
        yield f"nats://127.0.0.1:{port}", pid


@contextmanager
def responder(url: str, core: int, *model: str) -> Iterator[None]:
    """The same stand-in behind the queue, for one model; with ``keep`` it leaves long bodies where they are."""
    path = f"{CHECKOUT}:{CHECKOUT}/tests/unit/pool"
    argv = pinned(core, [sys.executable, str(CHECKOUT / "tests/unit/pool/echo_worker.py"), url, *model])
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path})
    try:
        if process.stdout is None or process.stdout.readline() != b"ready\n":
            raise BenchError("the responder behind the queue does not start")
        yield
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def gateway(folder: Path, url: str, core: int) -> Iterator[Proxy]:
    """A gateway of the pool, on a core of its own."""
    port = free_port()
    names = {"embed": MODEL, "kept": KEPT, "removed": REMOVED}
    models = tuple(wire.PoolModel(key, "embed", (name,), 100_000) for key, name in names.items())
    config = wire.GatewayConfig("bench", wire.NatsAccess((url,)), wire.Listen("127.0.0.1", port), models)
    file = folder / "gateway.json"
    file.write_text(json.dumps(wire.as_json(config)))
    argv = pinned(core, [sys.executable, "-m", "fleetctl.pool.gateway", str(file)])
    with started(argv, port, PYTHONPATH=str(CHECKOUT)) as pid:
        yield Proxy("gateway", port, (pid,))


def install_litellm(folder: Path) -> Path:
    """litellm's proxy in an environment of its own; its bin folder."""
    return make_venv(folder / "litellm", "litellm[proxy]")


@contextmanager
def litellm(folder: Path, binaries: Path, standin_port: int, core: int) -> Iterator[Proxy]:
    """litellm's proxy with one worker, no database, no keys, on a core of its own."""
    port = free_port()
    parameters = {"model": "openai/embed", "api_base": f"http://127.0.0.1:{standin_port}/v1", "api_key": "none"}
    config = {
        "model_list": [{"model_name": MODEL, "litellm_params": parameters}],
        "general_settings": {"dangerously_permit_weak_or_unset_master_key": True},  # it starts on loopback alone
        "litellm_settings": {"num_retries": 0, "telemetry": False, "set_verbose": False},
    }
    file = folder / "litellm.yaml"
    file.write_text(json.dumps(config))  # JSON is YAML
    argv = [str(binaries / "litellm"), "--config", str(file), "--port", str(port), "--host", "127.0.0.1"]
    argv += ["--num_workers", "1", "--telemetry", "False"]
    settings = {"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_DOCS": "True"}
    path = f"{binaries}:{os.environ.get('PATH', '')}"
    with started(pinned(core, argv), port, PATH=path, **settings) as pid:
        yield Proxy("litellm", port, (pid,))


# Load -----------------------------------------------------------------------------------------------------------------


def closed(port: int, clients: int, seconds: float) -> Load:
    """So many clients, each of which sends its next request when it has its answer. Raises BenchError for an error."""

    async def main() -> Load:
        asker = _asker(port)
        latencies: list[float] = []
        begin = time.perf_counter()
        end = begin + seconds

        async def client() -> None:
            while time.perf_counter() < end:
                latencies.append(await _ask(asker))

        await asyncio.gather(*(client() for _ in range(clients)))
        return Load(latencies, time.perf_counter() - begin)

    return _loop(main())


def paced(port: int, rate: float, seconds: float) -> Load:
    """Requests at a steady rate, whatever becomes of those before. Raises BenchError for an error."""

    async def main() -> Load:
        asker = _asker(port)
        begin = time.perf_counter()
        tasks = []
        for number in range(int(rate * seconds)):
            at = begin + number / rate
            await asyncio.sleep(at - time.perf_counter())
            tasks.append(asyncio.create_task(_ask(asker, at)))
        return Load(await asyncio.gather(*tasks), time.perf_counter() - begin)

    return _loop(main())


UPLOADS = """
import socket, sys
body = b'{"model":"%s","input":"' % sys.argv[2].encode() + b"x" * int(sys.argv[3]) + b'"}'
head = b"POST /v1/embeddings HTTP/1.1\\r\\nhost: a\\r\\ncontent-type: application/json\\r\\n"
head += b"content-length: %d\\r\\n\\r\\n"
data = head % len(body) + body
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as to:
    while True:
        to.sendall(data)
        answer = b""
        while b"\\r\\n\\r\\n" not in answer:
            answer += to.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200"), answer
        length = int(answer.lower().split(b"content-length: ")[1].split(b"\\r\\n")[0])
        left = length - len(answer.split(b"\\r\\n\\r\\n", 1)[1])
        while left:
            left -= len(to.recv(left))
        print("one", flush=True)
"""


class Uploader:
    """A client that uploads 32 MB, again and again, and can be held in the middle."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.done = 0
        """Uploads that were answered, once it is over."""
        self._process = process

    def hold(self) -> None:
        """It sends nothing until it may go on."""
        os.kill(self._process.pid, signal.SIGSTOP)
        time.sleep(SETTLE)

    def go_on(self) -> None:
        """It sends."""
        os.kill(self._process.pid, signal.SIGCONT)
        time.sleep(SETTLE)


@contextmanager
def uploads(port: int, core: int, model: str) -> Iterator[Uploader]:
    """Such a client, held at first."""
    argv = pinned(core, [sys.executable, "-c", UPLOADS, str(port), model, str(UPLOAD)])
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    one = Uploader(process)
    try:
        if process.stdout is None or not process.stdout.readline():
            raise BenchError("an upload was not answered")
        one.hold()
        yield one
        if process.poll() is not None:
            raise BenchError("an upload was not answered")
    finally:
        process.kill()
        rest = process.communicate()[0]
        one.done = rest.count(b"one")


def empty_store(url: str) -> None:
    """Remove all long bodies."""

    async def main() -> None:
        client = await nats.connect(url)
        await client.jetstream().purge_stream(f"OBJ_{wire.BODIES}")
        await client.close()

    asyncio.run(main())
    time.sleep(1)  # the server still gives the disk's space back


# Within ---------------------------------------------------------------------------------------------------------------


def pinned(core: int, argv: Sequence[str]) -> list[str]:
    """A command on one core."""
    return ["taskset", "-c", str(core), *argv]


def started(argv: Sequence[str], port: int, **environment: str) -> AbstractContextManager[int]:
    """A process that listens on a port; its id. It is ended with the block."""
    return serving(argv, listens(("127.0.0.1", port)), limit=START, **environment)


def _cpu(pid: int) -> float:
    """Seconds of a process and of its children that are alive."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return own + sum(_cpu(int(child)) for child in children)


def _asker(port: int) -> Asker:
    return Asker(parse_endpoint(f"http://127.0.0.1:{port}"), timeout=60)


async def _ask(asker: Asker, intended: float | None = None) -> float:
    exchange = await asker.ask(Request("/embeddings", BODY, stream=False, tokens=0), Window(), intended)
    if exchange.error or exchange.ended is None:
        raise BenchError(f"a request failed: {exchange.error}")
    return exchange.ended - exchange.intended


def _loop(main: object) -> Load:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)  # type: ignore[arg-type]


def ready(port: int) -> None:
    """Wait until a proxy answers a request."""
    argv = ["curl", "-sf", "--retry", "60", "--retry-all-errors", "--retry-delay", "1", "-o", "/dev/null"]
    argv += ["-H", "content-type: application/json", "-d", BODY.decode(), f"http://127.0.0.1:{port}/v1/embeddings"]
    run(argv, doing="asking the proxy for the first time")
