"""Who talks to an engine's port is seen on the box: connections, processes, and the engine's access log."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fleetctl.onbox import accesslog, callers, examine_clients
from fleetctl.onbox.main import Call
from fleetctl.remote import program

CLIENT = """\
import socket, sys
one = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print("connected", flush=True)
sys.stdin.read()
"""


@contextmanager
def engine() -> Iterator[int]:
    """A port that takes every connection and keeps it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    kept.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield int(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
        for one in kept:
            one.close()


@contextmanager
def client(port: int, **env: str) -> Iterator[int]:
    """Another process that is connected to a port; its pid."""
    argv = [sys.executable, "-c", CLIENT, str(port)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": {**os.environ, **env}}
    with subprocess.Popen(argv, **pipes) as process:
        assert process.stdin and process.stdout
        process.stdout.readline()
        yield process.pid
        process.stdin.close()


def look(port: int, seconds: float = 0.0) -> dict[str, Any]:
    events: list[dict[str, Any]] = []
    return examine_clients.examine_clients(
        Call(1, events.append), {}, [["127.0.0.1", port]], ["127.0.0.1"], seconds=seconds, sizes=True
    )


def test_a_process_that_is_connected_to_an_engine_is_named_and_one_of_fleetctl_is_not() -> None:
    with engine() as port, client(port) as pid, client(port, FLEETCTL_ENGINE="replicas/qwen@1"):
        (seen,) = look(port)["seen"]
    assert (seen["process"]["pid"], seen["open"], seen["incoming"]) == (pid, True, False)
    assert seen["remote"] == ("127.0.0.1", port)


def test_a_connection_that_ends_is_told_as_over_with_its_first_and_last_sight() -> None:
    with engine() as port:
        with client(port):
            found: list[dict[str, Any]] = []
            watching = threading.Thread(target=lambda: found.append(look(port, 2.0)))
            watching.start()
            time.sleep(0.8)
        watching.join()
    (seen,) = found[0]["seen"]
    assert not seen["open"] and seen["last"] >= seen["first"]


def test_the_engines_own_box_tells_of_strangers_and_not_of_boxes_that_are_asked_themselves() -> None:
    with engine() as port, client(port):
        watch = examine_clients._Watch({port}, set(), set())
        watch.look()
        assert watch.told() == [], "loopback is the box itself"
        assert watch.listens == {port: {"127.0.0.1"}}
        assert len(watch.fleet) == 1


def test_a_cancelled_look_ends() -> None:
    call = Call(1, lambda message: None)
    call.cancelled.set()
    with engine() as port, pytest.raises(Exception, match="cancelled"):
        examine_clients.examine_clients(call, {}, [["127.0.0.1", port]], [], seconds=None)


@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace needs root")
def test_a_container_with_a_network_of_its_own_is_looked_into_too() -> None:
    with subprocess.Popen(["unshare", "--net", "sleep", "60"]) as other:
        try:
            end = time.monotonic() + 20
            while other.pid not in examine_clients.other_networks():
                assert time.monotonic() < end
                time.sleep(0.05)
        finally:
            other.kill()


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["python3", "-u", "/opt/job.py", "--key", "sk-secret"], "python3 /opt/job.py"),
        (["/usr/bin/python3.11", "-m", "batch", "--key=sk-secret"], "python3.11 -m batch"),
        (["bash", "-c", "curl -H 'Authorization: sk-secret'"], "bash"),
        (["/usr/bin/curl", "-H", "sk-secret"], "curl"),
        (["nginx: worker process"], "nginx:"),
        ([], ""),
    ],
)
def test_of_a_command_line_only_program_and_script_are_told(
    argv: list[str], shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "_command_line", lambda pid: b"\0".join(map(os.fsencode, argv)))
    assert callers.command_of(1) == shown


def test_the_program_that_fleetctl_runs_on_a_box_is_known_by_its_command_line() -> None:
    assert callers.PROGRAM.decode() in program._BOOTSTRAP


LINES = r"""
1796034660.0 b vllm[41]: (APIServer pid=41) INFO:     192.0.2.7:53210 - "POST /v1/chat/completions HTTP/1.1" 200 OK
1796034659.0 b vllm[41]: INFO:     192.0.2.7:53209 - "POST /v1/chat/completions HTTP/1.1" 401 Unauthorized
1796034658.0 b vllm[41]: INFO:     192.0.2.8:53208 - "GET /metrics HTTP/1.1" 200 OK
1796034657.0 b vllm[41]: INFO:     ::ffff:192.0.2.8:53208 - "GET /health HTTP/1.1" 200 OK
1796034656.0 b vllm[41]: [2026-11-30 10:00:00] INFO:     10.0.0.1:40000 - "POST /generate HTTP/1.1" 200 OK
1796034655.0 b vllm[41]: INFO:     198.51.100.9:0 - "POST /v1/chat/completions HTTP/1.1" 200 OK
1796034654.0 b vllm[41]: INFO 11-30 07:10:02 [loggers.py:1] Engine 000: Avg prompt throughput: 1.0 tokens/s
-- Boot 0123 --
1796034653.5 b vllm[41]: INFO:     12:34:56 - "POST /v1/chat/completions HTTP/1.1" 200 OK
1796034653.0 b vllm[41]: INFO:     fd00::9:53200 - "POST /v1/embeddings HTTP/1.1" 200 OK
"""


def test_the_access_log_says_who_asked_for_work_and_who_only_read() -> None:
    asked = accesslog.Asked(["10.0.0.1"], {("10.0.0.1", 40000), ("192.0.2.8", 53208)}, 1796034660.0)
    for line in LINES.strip().encode().split(b"\n"):
        asked.add(line)
    told = asked.told()
    counts = {client: (one["work"], one["reads"], one["other"]) for client, one in told["clients"].items()}
    # What an engine that trusts X-Forwarded-For writes has port 0: it came through the proxy.
    assert counts == {"192.0.2.7": (1, 0, 1), "192.0.2.8": (0, 2, 0), "fd00::9": (1, 0, 0)}
    assert told["connections"] == {
        "10.0.0.1 40000": "work",
        "192.0.2.8 53208": "reads",
        "192.0.2.7 53210": "work",
    }, "those asked for, and all of the last second"
    assert told["clients"]["192.0.2.7"]["worked"] == 1796034660.0


def test_bytes_are_read_from_the_words_of_ss() -> None:
    text = (
        "0      0          10.0.0.2:8000    192.0.2.7:53210\n"
        "\t cubic wscale:7,7 rto:204 bytes_sent:520 bytes_acked:520 bytes_received:297 segs_out:4\n"
        "0      0      [::ffff:10.0.0.2]:8000 [::ffff:192.0.2.8]:53211\n\t cubic rto:204\n"
    )
    assert examine_clients.sizes_in(text) == {
        ("10.0.0.2", 8000, "192.0.2.7", 53210): (520, 297),
        ("10.0.0.2", 8000, "192.0.2.8", 53211): (0, 0),
    }
