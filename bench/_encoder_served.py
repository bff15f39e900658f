"""The encoder as clients reach it, for bench/pool_encoder.py: directly on its socket, and through a pool."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import msgpack
from _common import CHECKOUT, BenchError
from _engines import free_port
from _serving import Address, connect, listens, serving

from fleetctl.pool import wire

MODEL = "minilm"
START = 60.0
WHOLE = {"truncate_prompt_tokens": -1}
KINDS = {"one_text": (64, 1), "64_texts": (4, 64)}
"""Clients at once, and texts of each of their requests."""
NATS = """listen: 127.0.0.1:{port}
http: 127.0.0.1:{monitor}
jetstream {{ store_dir: "{folder}/jetstream", max_file_store: 1GB }}
"""
SYSTEMCTL = """#!/bin/sh
# The engine here is no unit: it runs, whatever is asked.
echo active
"""


@dataclass(frozen=True)
class Work:
    """The model, and the texts that are embedded."""

    folder: Path
    """Of this run."""
    model: Path
    listed: Path
    """JSON: the texts, and their tokens."""
    texts: list[str]
    tokens: list[list[int]]


@dataclass(frozen=True)
class Served:
    """Where clients ask, and the processes that it takes to answer them."""

    address: Address
    processes: tuple[int, ...]


@contextmanager
def encoder(work: Work, python: Path, batch: int) -> Iterator[Served]:
    """The server, run by that Python, with batches of so many tokens."""
    path = work.folder / "encoder.socket"
    argv = [str(python), "-m", "fleetctl.pool.encoder", "--model", str(work.model), "--served-model-name", MODEL]
    argv += ["--max-batch-tokens", str(batch), "--uds", str(path)]
    with running(argv, work.folder, path) as process:
        yield Served(path, (process,))


@contextmanager
def pool(work: Work, engine: Served) -> Iterator[Served]:
    """One nats-server, one gateway and one worker in front of the encoder."""
    program = shutil.which("nats-server")
    if program is None:
        raise BenchError("nats-server is not installed: apt-get install nats-server")
    folder = work.folder / "pool"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/systemctl").write_text(SYSTEMCTL)
    (folder / "bin/systemctl").chmod(0o755)
    port, monitor, entry, rest = (free_port() for _ in range(4))
    (folder / "nats.conf").write_text(NATS.format(port=port, monitor=monitor, folder=folder))
    access = wire.NatsAccess((f"nats://127.0.0.1:{port}",))
    gateway = wire.GatewayConfig(
        "g1", access, wire.Listen("127.0.0.1", entry), (wire.PoolModel(MODEL, "embed", (MODEL,), limit=10_000),)
    )
    one = wire.PoolEngine(
        MODEL, "embed", (MODEL,), "encoder.service", f"unix:{engine.address}", "encoder", pinned=True, batch_tokens=2048
    )
    worker = wire.WorkerConfig("here", access, wire.Listen("127.0.0.1", rest), 1 << 30, (one,))
    with ExitStack() as stack:
        argv = [program, "-c", str(folder / "nats.conf")]
        processes = [*engine.processes, stack.enter_context(running(argv, folder, ("127.0.0.1", port)))]
        for name, config, listens in (("gateway", gateway, entry), ("worker", worker, rest)):
            file = folder / f"{name}.json"
            file.write_text(json.dumps(wire.as_json(config)))
            argv = [sys.executable, "-m", f"fleetctl.pool.{name}", str(file)]
            processes.append(stack.enter_context(running(argv, folder, ("127.0.0.1", listens))))
        yield Served(("127.0.0.1", entry), tuple(processes))


def running(argv: Sequence[str], folder: Path, address: Address) -> AbstractContextManager[int]:
    """A program that listens at ``address``, by its process; it is ended with the block."""
    log = folder / f"{Path(argv[0]).name}-{Path(argv[-1]).name}.log"
    path = f"{folder / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin"
    return serving(argv, listens(address), limit=START, log=log, PYTHONPATH=str(CHECKOUT), PATH=path)


def drive(served: Served, work: Work, kind: str, seconds: float) -> tuple[float, float]:
    """Tokens per second of clients that ask again as soon as they have their answer, and per second of a core's time
    that the processes took. Requests are MessagePack."""
    clients, size = KINDS[kind]
    requests = made(work, size)
    turn, done, failed = count(), [0] * clients, []
    begin, used = time.perf_counter(), core_seconds(served)

    def client(number: int) -> None:
        with connect(served.address) as sock, sock.makefile("rb") as answers:
            while time.perf_counter() < begin + seconds and not failed:
                request, tokens = requests[next(turn) % len(requests)]
                sock.sendall(request)
                status, length = answers.readline(), 0
                while (line := answers.readline().lower()) not in (b"\r\n", b""):
                    length = int(line[15:]) if line.startswith(b"content-length:") else length
                body = answers.read(length)
                if b" 200 " not in status:
                    failed.append(status + body[:300])
                    return
                done[number] += tokens

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise BenchError(f"a request is refused: {failed[0]!r}")
    return sum(done) / (time.perf_counter() - begin), sum(done) / (core_seconds(served) - used)


def core_seconds(served: Served) -> float:
    """Seconds of cores that the processes have taken since their start (proc(5), stat)."""
    ticks = 0
    for process in served.processes:
        after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(after_name[11]) + int(after_name[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def made(work: Work, size: int) -> list[tuple[bytes, int]]:
    """Requests of so many texts, in no order, and the tokens of each."""
    order = random.Random(7).sample(range(len(work.texts)), len(work.texts))
    requests = []
    for at in range(0, len(order) - size + 1, size):
        chosen = order[at : at + size]
        body = msgpack.packb({"model": MODEL, "input": [work.texts[one] for one in chosen], **WHOLE})
        head = "POST /v1/embeddings HTTP/1.1\r\nhost: encoder\r\ncontent-type: application/msgpack\r\n"
        head += f"content-length: {len(body)}\r\n\r\n"
        requests.append((head.encode() + body, sum(len(work.tokens[one]) for one in chosen)))
    return requests
