"""Lines for models behind the proxy: taken when it has room, and answered once whatever breaks in between."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from batchworker import prepare
from natsserver import NatsServer, free_port, needs_nats, running
from standinproxy import Proxy, proxying

from fleetctl.pool import nats, wire
from fleetctl.pool.batch import runner as module
from fleetctl.pool.batch.__main__ import main, runner_config
from fleetctl.pool.batch.lines import BatchFile, Targets, read
from fleetctl.pool.batch.output import paths
from fleetctl.pool.batch.room import PAGE, Proxied, room
from fleetctl.pool.batch.runner import Runner, RunnerConfig
from fleetctl.pool.batch.standby import has_address
from fleetctl.run import batch_jobs
from fleetctl.run.batching import Way

QUICK = "from fleetctl.pool import wire; wire.ACK_WAIT = 1.0; wire.AT_WORK_EVERY = 0.3; "
PROGRAM = [
    sys.executable,
    "-c",
    QUICK + "import sys; from fleetctl.pool.batch.__main__ import main; sys.exit(main(sys.argv[1:]))",
]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NatsServer]:
    monkeypatch.setattr(wire, "ACK_WAIT", 1.0)
    monkeypatch.setattr(wire, "AT_WORK_EVERY", 0.3)
    monkeypatch.setattr(module, "AGAIN", 0.05)
    monkeypatch.setattr(module, "LATER", 0.2)
    monkeypatch.setattr(batch_jobs, "ANSWERS_IN", 1.0)
    monkeypatch.setattr(batch_jobs, "LISTS_IN", 1.0)
    with running(tmp_path) as server:
        prepare(server.access)
        asyncio.run(_with_consumer(server))
        yield server


async def _with_consumer(server: NatsServer) -> None:
    client = await nats.connect(server.access, "test", wait=10)
    await nats.make_consumer(client.jetstream(), "big", "batch")
    await client.close()


class Quiet:
    """Hears of a job and says nothing."""

    def begun(self, *_: Any) -> None: ...
    def hear(self, *_: Any) -> None: ...
    def submitted(self, *_: Any) -> None: ...
    def written(self, *_: Any, cancelled: bool) -> None: ...


def config_for(server: NatsServer, proxy: Proxy, **more: Any) -> RunnerConfig:
    return RunnerConfig("spark1", server.access, proxy.address, (Proxied("big", "big", **more),))


def file_of(count: int) -> BatchFile:
    rows = [{"model": "big", "prompt": f"text {number}"} for number in range(count)]
    return read("in.jsonl", "\n".join(map(json.dumps, rows)).encode(), Targets({}, {}))


def answered(server: NatsServer, count: int, folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    where = paths("x", folder / "out.jsonl")
    batch_jobs.carry_out(Way(server.access, None), file_of(count), where, Quiet())
    return tuple(  # type: ignore[return-value]
        [json.loads(row) for row in path.read_text().splitlines()] if path.exists() else [] for path in where
    )


@contextmanager
def taking(config: RunnerConfig) -> Iterator[Runner]:
    """A runner in a thread, stopped at the end of a with block."""
    ready = threading.Event()
    found: list[tuple[Runner, asyncio.AbstractEventLoop]] = []

    async def serve() -> None:
        client = await nats.connect(config.nats, "runner", wait=10)
        found.append((Runner(config, client), asyncio.get_running_loop()))
        ready.set()
        await found[0][0].run()
        await client.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield found[0][0]
    finally:
        found[0][1].call_soon_threadsafe(found[0][0].stop)
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("told", "at_work", "most"),
    [
        ({"usable": 1, "queued": 0, "free": 10}, 0, 4),
        ({"usable": 1, "queued": 0, "free": 10}, 3, 1),
        ({"usable": 1, "queued": 0, "free": 10}, 9, 0),
        ({"usable": 1, "queued": 0, "free": 3}, 0, 2),  # one place stays free
        ({"usable": 1, "queued": 0, "free": 1}, 0, 0),
        ({"usable": 1, "queued": 1, "free": 10}, 0, 0),  # somebody waits
        ({"usable": 0, "queued": 0, "free": -1}, 0, 0),  # no engine
        ({"usable": 1, "queued": 0, "free": -1}, 0, 4),  # no limit
    ],
)
def test_lines_get_what_the_proxy_has_to_spare(told: dict[str, int], at_work: int, most: int) -> None:
    page = json.dumps({key: {"big": value, "other": 0} for key, value in told.items()}).encode()
    assert room(page, Proxied("big", "big"), at_work) == most


@pytest.mark.parametrize(
    "page", [b"", b"[]", b'{"usable": {}}', b'{"usable": {"big": "x"}}', b'{"usable": {"big": 1}}']
)
def test_a_proxy_that_does_not_tell_its_room_gets_no_lines(page: bytes) -> None:
    assert room(page, Proxied("big", "big"), 0) == 0


@needs_nats
def test_lines_go_to_the_proxy_with_its_key_and_no_more_at_once_than_allowed(
    server: NatsServer, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("a-key\n")
    with proxying(pace=0.02) as proxy:
        config = config_for(server, proxy, concurrency=3)
        with taking(RunnerConfig(**{**vars(config), "key_file": str(tmp_path / "key")})):
            good, bad = answered(server, 12, tmp_path)
    assert not bad and [row["response"]["body"]["asked"]["prompt"] for row in good] == [f"text {n}" for n in range(12)]
    assert len(proxy.asked) == 12 and proxy.most_at_once <= 3
    assert {(one["authorization"], one["fleetctl-lane"]) for one in proxy.headers} == {("Bearer a-key", "batch")}
    assert "a-key" not in repr(good)


@needs_nats
def test_nothing_is_taken_while_somebody_waits_at_the_proxy(server: NatsServer, tmp_path: Path) -> None:
    with proxying() as proxy:
        proxy.page["queued"]["big"] = 1
        with taking(config_for(server, proxy)):
            batch_jobs.carry_out(Way(server.access, None), file_of(3), None, Quiet())
            time.sleep(1.2)
            assert proxy.asked == []
            proxy.page["queued"]["big"] = 0
            assert len(answered(server, 3, tmp_path)[0]) == 3


@needs_nats
def test_what_finds_no_engine_comes_again_and_what_engines_fail_at_ends_with_their_error(
    server: NatsServer, tmp_path: Path
) -> None:
    seen: dict[str, int] = {}

    def status(body: dict[str, Any]) -> int:
        prompt = body["prompt"]
        seen[prompt] = seen.get(prompt, 0) + 1
        if prompt == "text 0":
            return 503 if seen[prompt] < 5 else 200
        return {"text 1": 500, "text 2": 422}.get(prompt, 200)

    with proxying(status) as proxy, taking(config_for(server, proxy)):
        good, bad = answered(server, 4, tmp_path)
    assert [row["custom_id"] for row in good] == ["line-1", "line-4"]
    assert [(row["custom_id"], row["response"]["status_code"]) for row in bad] == [("line-2", 500), ("line-3", 422)]
    assert seen == {"text 0": 5, "text 1": 3, "text 2": 1, "text 3": 1}


@needs_nats
def test_a_runner_that_is_killed_is_followed_by_another_and_each_line_is_answered_once(
    server: NatsServer, tmp_path: Path
) -> None:
    with proxying(pace=0.05) as proxy:
        (tmp_path / "config.json").write_text(json.dumps(asdict(config_for(server, proxy))))
        words = [*PROGRAM, str(tmp_path / "config.json")]
        first = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        outcome: list[Any] = []
        job = threading.Thread(target=lambda: outcome.append(answered(server, 40, tmp_path)))
        job.start()
        while len(proxy.asked) < 10:
            time.sleep(0.01)
        first.kill()
        first.wait()
        second = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        job.join(60)
        second.send_signal(signal.SIGTERM)
        assert second.wait(20) == 0, second.stderr and second.stderr.read()
    good, bad = outcome[0]
    assert len(good) == 40 and not bad
    twice = len(proxy.asked) - 40
    assert 0 <= twice <= 4  # those that were at work when it was killed
    assert len({one["prompt"] for one in proxy.asked}) == 40


@needs_nats
def test_of_two_runners_one_is_killed_and_the_other_answers_each_line_once(server: NatsServer, tmp_path: Path) -> None:
    with proxying(pace=0.05) as proxy:
        (tmp_path / "config.json").write_text(json.dumps(asdict(config_for(server, proxy))))
        words = [*PROGRAM, str(tmp_path / "config.json")]
        runners = [subprocess.Popen(words, stderr=subprocess.DEVNULL) for _ in range(2)]
        try:
            batch_jobs.carry_out(Way(server.access, None), file_of(60), None, Quiet())
            while proxy.most_at_once < 5:  # one alone has four at most
                time.sleep(0.01)
            runners[0].kill()
            good, bad = answered(server, 60, tmp_path)
        finally:
            for runner in runners:
                runner.kill()
                runner.wait()
    assert [row["response"]["body"]["asked"]["prompt"] for row in good] == [f"text {n}" for n in range(60)] and not bad
    assert 60 <= len(proxy.asked) <= 64  # those that were at work when it was killed are asked twice


@needs_nats
def test_lines_are_taken_by_the_runner_where_the_floating_address_is(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = {"192.0.2.1": True, "192.0.2.2": False}
    monkeypatch.setattr(module, "has_address", lambda address: where[address])
    monkeypatch.setattr(module, "LOOK_EVERY", 0.05)
    with proxying() as one, proxying() as two, contextlib.ExitStack() as stack:
        for proxy, address in zip((one, two), where, strict=True):
            stack.enter_context(taking(replace(config_for(server, proxy), floating=address)))
        assert len(answered(server, 3, tmp_path)[0]) == 3
        assert (len(one.asked), len(two.asked)) == (3, 0)
        where.update({"192.0.2.1": False, "192.0.2.2": True})
        time.sleep(0.2)
        assert len(answered(server, 5, tmp_path)[0]) == 5
        assert (len(one.asked), len(two.asked)) == (3, 5)


def test_an_address_is_found_among_those_of_this_box(tmp_path: Path) -> None:
    (tmp_path / "fib_trie").write_text(
        "Local:\n  +-- 10.0.0.0/24 2 0 2\n     |-- 10.0.0.0\n        /24 link UNICAST\n"
        "     |-- 10.0.0.9\n        /32 host LOCAL\n     |-- 10.0.0.255\n        /32 link BROADCAST\n"
    )
    (tmp_path / "if_inet6").write_text("fd000000000000000000000000000009 02 80 00 80     eth0\n")
    there = ("10.0.0.9", "fd00::9", "fd00:0:0::0009")
    away = ("10.0.0.0", "10.0.0.8", "10.0.0.255", "fd00::8")
    assert [has_address(one, tmp_path) for one in (*there, *away)] == [True] * 3 + [False] * 4
    assert has_address("127.0.0.1") and not has_address("192.0.2.77")


@needs_nats
def test_lines_at_work_are_finished_before_a_runner_ends(server: NatsServer, tmp_path: Path) -> None:
    with proxying(pace=0.6) as proxy:
        with taking(config_for(server, proxy)):
            batch_jobs.carry_out(Way(server.access, None), file_of(2), None, Quiet())
            while len(proxy.asked) < 2:
                time.sleep(0.01)
        (only,) = batch_jobs.jobs(Way(server.access, None))
    assert (only.answered, only.waiting) == (2, 0) and len(proxy.asked) == 2


@needs_nats
def test_nats_that_is_killed_while_lines_are_at_work_has_their_answers_afterwards(
    server: NatsServer, tmp_path: Path
) -> None:
    with proxying(pace=0.3) as proxy, taking(config_for(server, proxy)):
        outcome: list[Any] = []
        job = threading.Thread(target=lambda: outcome.append(answered(server, 8, tmp_path)))
        job.start()
        while len(proxy.asked) < 5:
            time.sleep(0.01)
        server.stop(signal.SIGKILL)
        time.sleep(0.5)
        server.start()
        job.join(60)
    assert len(outcome[0][0]) == 8


@needs_nats
def test_a_runner_without_a_model_waits_for_its_end(server: NatsServer) -> None:
    with taking(RunnerConfig("spark1", server.access, "http://127.0.0.1:1", ())) as runner:
        time.sleep(0.2)
        assert not runner.stopped


def test_a_proxy_with_tls_is_verified_unless_it_is_on_this_box() -> None:
    here = module._tls("https://127.0.0.1:8080")
    assert here is not None and here.verify_mode == ssl.CERT_NONE
    assert module._tls("https://192.0.2.1:8080") is None  # the client's own context, which verifies
    assert module._tls("http://127.0.0.1:8080") is None


HAPROXY = shutil.which("haproxy") or shutil.which("/usr/sbin/haproxy")
CONFIG = """
global
    nbthread 1
defaults
    mode http
    timeout connect 1s
    timeout client 10s
    timeout server 10s
    timeout queue 10s
frontend in
    bind 127.0.0.1:{port}
    http-request return status 200 content-type application/json lf-string {page} if {{ path {path} }}
    default_backend big
backend big
    server one 127.0.0.1:{engine} maxconn 2
    server spare 127.0.0.1:1 maxconn 2 disabled
"""


@pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed")
def test_haproxy_itself_tells_the_room_as_it_is_read(tmp_path: Path) -> None:
    counted = '"queued":{"big":%[queue(big)]},"free":{"big":%[be_conn_free(big)]}'
    page = '\'{"usable":{"big":%[nbsrv(big)]},' + counted + "}'"
    with proxying(pace=1.0) as engine:
        port = free_port()
        (tmp_path / "haproxy.cfg").write_text(
            CONFIG.format(port=port, page=page, path=PAGE, engine=engine.server.server_address[1])
        )
        with subprocess.Popen([str(HAPROXY), "-f", str(tmp_path / "haproxy.cfg")]) as proxy:
            try:
                _await_port(port)
                assert _room(port) == 1  # two places, and one stays free
                asking = [threading.Thread(target=_ask, args=(port,)) for _ in range(3)]
                for count, thread in enumerate(asking, start=1):
                    thread.start()
                    while engine.at_once < min(count, 2):
                        time.sleep(0.01)
                    assert _room(port) == 0
                end = time.monotonic() + 10
                while json.loads(_get(port))["queued"]["big"] != 1:  # the third comes a moment later
                    assert time.monotonic() < end
                    time.sleep(0.01)
                for thread in asking:
                    thread.join()
                assert _room(port) == 1
            finally:
                proxy.terminate()


def _await_port(port: int) -> None:
    for _ in range(400):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError("haproxy does not listen")


def _get(port: int) -> bytes:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", PAGE)
    return connection.getresponse().read()


def _room(port: int) -> int:
    return room(_get(port), Proxied("big", "big"), 0)


def _ask(port: int) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("POST", "/v1/completions", b"{}", {"content-type": "application/json"})
    assert connection.getresponse().read()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "Expecting property name"),
        ("[]", "the configuration of a batch runner cannot be read"),
        ('{"nats": {"servers": []}, "models": [{"modle": 1}], "box": "a", "address": "b"}', "modle"),
        ('{"nats": {"servers": []}, "models": [], "box": "a"}', "address"),
    ],
)
def test_a_configuration_that_cannot_be_read_is_said_to_be_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    (tmp_path / "config.json").write_text(text)
    assert main([str(tmp_path / "config.json")]) == 1
    assert said in capsys.readouterr().err
    assert main([]) == 2


def test_a_configuration_is_read_as_it_was_written() -> None:
    models = (Proxied("big", "b", 8, 2, 1),)
    access = wire.NatsAccess(("nats://a",), "worker", "/f")
    config = RunnerConfig("spark1", access, "unix:/s", models, "/k", "192.0.2.9")
    assert runner_config(json.loads(json.dumps(asdict(config)))) == config
