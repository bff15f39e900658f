"""Batch jobs through the programs of a pool, with NATS as it is rendered and each program in its own role."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import poolworker
import pytest
from batchworker import openai
from natsserver import NatsServer, needs_nats
from standin_engine import embedding
from standinproxy import proxying
from test_batch_runner import Quiet
from test_pool_nats_rights import access, files_of

from fleetctl.errors import RefusedError
from fleetctl.pool import wire
from fleetctl.pool.batch import complete as completing
from fleetctl.pool.batch.lines import Targets, read
from fleetctl.pool.batch.output import paths
from fleetctl.pool.batch.room import Proxied
from fleetctl.pool.batch.runner import RunnerConfig
from fleetctl.run import batch_jobs
from fleetctl.run.batching import Way

pytestmark = needs_nats


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    made = NatsServer(tmp_path)
    text = files_of("queue", tmp_path)["nats.conf"].replace("10.0.0.1:4222", f"127.0.0.1:{made.port}")
    made.config.write_text(text.replace("/var/lib/fleetctl-nats", str(tmp_path / "store")))
    made.start()
    yield made
    made.stop(signal.SIGKILL)


def program(server: NatsServer, words: list[str], config: Any, name: str) -> subprocess.Popen[bytes]:
    """A program of the pool with its configuration; what it says is in a file of that name."""
    (server.folder / f"{name}.json").write_text(json.dumps(config))
    argv = [sys.executable, *words, str(server.folder / f"{name}.json")]
    with (server.folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(argv, env=poolworker.environment(), stderr=log)


def way(server: NatsServer) -> Way:
    operator = access(server, "operator")
    return Way(wire.NatsAccess(operator.servers, "operator"), Path(operator.password_file).read_text().strip())


def carried(server: NatsServer, folder: Path, texts: list[str], model: str) -> list[dict[str, Any]]:
    """The answers to embeddings of these texts, once somebody takes lines for the model."""
    file = read("in.jsonl", openai(*texts).replace(b'"m"', json.dumps(model).encode()), Targets({}, {}))
    where = paths("x", folder / "out.jsonl")
    deadline = time.monotonic() + 30
    while True:
        try:
            batch_jobs.carry_out(way(server), file, where, Quiet())
            return [json.loads(row) for row in where[0].read_text().splitlines()]
        except (RefusedError, batch_jobs.QueueError):
            assert time.monotonic() < deadline  # the program has not made its streams and consumers yet
            time.sleep(0.1)


def test_lines_are_answered_by_a_worker_that_is_killed_and_by_the_next_with_nats_killed_as_well(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completing, "ROUNDS", 1)  # nothing is lost and submitted again
    engine = poolworker.engine(server.folder, "minilm", pinned=True)
    config = wire.as_json(poolworker.config(access(server, "worker"), engine))
    words = [str(poolworker.HERE / "worker_process.py")]
    texts = [f"slow 20 text {number}" for number in range(150)]
    units = poolworker.ProcessUnits()
    units.spawn(engine.unit)
    workers = [program(server, words, config, "worker")]
    outcome: list[Any] = []
    job = threading.Thread(target=lambda: outcome.append(carried(server, tmp_path, texts, "minilm")))
    job.start()
    try:
        _until(lambda: _answered(server) >= 20)
        workers[0].kill()
        workers.append(program(server, words, config, "worker"))
        _until(lambda: _answered(server) >= 70)
        server.stop(signal.SIGKILL)
        time.sleep(0.3)
        server.start()
        job.join(60)
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait(20)
        units.end()
    rows = outcome[0]
    assert [row["custom_id"] for row in rows] == [f"c{number}" for number in range(1, 151)]
    found = [row["response"]["body"]["data"][0]["embedding"] for row in rows]
    assert found == [embedding(text) for text in texts]
    assert "iolation" not in (server.folder / "worker.log").read_text()


def test_the_runner_does_its_part_within_the_rights_of_a_worker(server: NatsServer, tmp_path: Path) -> None:
    with proxying() as proxy:
        config = RunnerConfig("a", access(server, "worker"), proxy.address, (Proxied("big", "big"),))
        runner = program(server, ["-m", "fleetctl.pool.batch"], asdict(config), "batch")
        try:
            # The bucket for a long body is a gateway's or a worker's to make; the lines here have short ones.
            rows = carried(server, tmp_path, [f"text {number}" for number in range(20)], "big")
        finally:
            runner.terminate()
            assert runner.wait(20) == 0
    assert [row["response"]["body"]["asked"]["input"] for row in rows] == [f"text {number}" for number in range(20)]
    assert "iolation" not in (server.folder / "batch.log").read_text()


def _answered(server: NatsServer) -> int:
    try:
        return sum(one.answered for one in batch_jobs.jobs(way(server)))
    except batch_jobs.QueueError:
        return 0


def _until(true: Any) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
