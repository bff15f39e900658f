"""rank.py on loopback: the ranks of an engine start, stop, restart and fail together."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "systemd" / "rank.py"
PATIENCE = 30.0  # seconds; only ever spent by a test that fails
ENGINE = ["sh", "-c", 'echo "epoch $FLEETCTL_EPOCH"; exec sleep 1000']


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def until(what: Callable[[], object], why: str) -> None:
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, why
        time.sleep(0.02)


class Rank:
    """A running rank.py, its output, and what it tells systemd."""

    def __init__(self, folder: Path, number: int, port: int, *, ranks: int = 2, engine: list[str], **options: str):
        words = {"silence": "1.5", "stop-limit": "5", "digest": "same", **options}
        folder.mkdir(parents=True, exist_ok=True)
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.setblocking(False)
        address = folder / f"notify-{number}-{time.monotonic_ns()}"
        self.notify.bind(str(address))
        self.told: list[str] = []
        self.output = folder / f"output-{number}-{time.monotonic_ns()}"
        command = [sys.executable, str(SCRIPT), "--rank", str(number), "--ranks", str(ranks)]
        command += ["--head", "127.0.0.1", "--port", str(port)]
        command += [word for key, value in words.items() for word in (f"--{key}", value)]
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [*command, "--", *engine],
                stdout=output,
                stderr=output,
                env={**os.environ, "NOTIFY_SOCKET": str(address)},
            )

    @property
    def text(self) -> str:
        return self.output.read_text()

    def wait_for(self, word: str) -> None:
        until(lambda: word in self.text or self.process.poll() is not None, f"no {word!r} in {self.text}")
        assert word in self.text, self.text

    def status(self) -> int:
        return self.process.wait(PATIENCE)

    def is_ready(self) -> bool:
        try:
            while True:
                self.told.append(self.notify.recv(4096).decode())
        except BlockingIOError:
            return any("READY=1" in message for message in self.told)

    @property
    def engine_pid(self) -> int:
        return int(self.text.partition("engine started as process ")[2].split()[0])

    @property
    def epoch(self) -> str:
        return self.text.partition("epoch ")[2].split()[0].rstrip(":")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Rank]]:
    """Starts ranks, and ends them after the test."""
    started: list[Rank] = []

    def begin(number: int, port: int, *, engine: list[str] = ENGINE, ranks: int = 2, **options: str) -> Rank:
        options = {key.replace("_", "-"): value for key, value in options.items()}
        started.append(Rank(tmp_path, number, port, ranks=ranks, engine=engine, **options))
        return started[-1]

    yield begin
    for rank in started:
        rank.process.send_signal(signal.SIGCONT)
        rank.process.kill()
        rank.process.wait()
        rank.notify.close()


@pytest.fixture
def health() -> Iterator[tuple[str, threading.Event]]:
    """An address that answers 503 until the event is set, then 200."""
    ready = threading.Event()

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if ready.is_set() else 503)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/health", ready
    server.shutdown()
    server.server_close()


def pair(start: Callable[..., Rank], **options: str) -> tuple[Rank, Rank]:
    """Two ranks whose engines run."""
    port = free_port()
    ranks = start(0, port, **options), start(1, port, **options)
    for rank in ranks:
        rank.wait_for("engine started")
    return ranks


def test_no_engine_is_started_until_all_ranks_are_there(start: Callable[..., Rank]) -> None:
    port = free_port()
    first = start(1, port)
    first.wait_for("waiting for the head")
    head = start(0, port, ranks=2)
    for rank in (head, first):
        rank.wait_for("engine started")
    assert head.epoch == first.epoch


def test_three_ranks_get_one_epoch(start: Callable[..., Rank]) -> None:
    port = free_port()
    ranks = [start(number, port, ranks=3) for number in (2, 0)]
    ranks[1].wait_for("rank 2 is here")
    time.sleep(0.3)
    assert "engine started" not in ranks[1].text
    ranks.append(start(1, port, ranks=3))
    for rank in ranks:
        rank.wait_for("engine started")
    assert len({rank.epoch for rank in ranks}) == 1
    for rank in ranks:
        until(lambda rank=rank: f"epoch {rank.epoch}\n" in rank.text, "the engine does not see its epoch")


def test_every_rank_is_ready_when_the_engine_answers_and_none_before(
    start: Callable[..., Rank], health: tuple[str, threading.Event]
) -> None:
    url, ready = health
    port = free_port()
    ranks = [start(0, port, health=url), start(1, port)]
    for rank in ranks:
        rank.wait_for("engine started")
    time.sleep(0.5)
    assert not any(rank.is_ready() for rank in ranks)
    ready.set()
    for rank in ranks:
        until(rank.is_ready, "systemd was not told")


def test_waiting_asks_systemd_for_more_time(start: Callable[..., Rank]) -> None:
    waiting = [start(0, free_port(), load_limit="100"), start(1, free_port(), load_limit="100")]
    for rank in waiting:
        until(lambda rank=rank: rank.is_ready() or rank.told, "systemd heard nothing")
        assert "EXTEND_TIMEOUT_USEC=130000000" in rank.told[0]


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_rank_takes_its_own_engine_and_all_others_with_it(start: Callable[..., Rank], killed: int) -> None:
    ranks = pair(start)
    engines = [rank.engine_pid for rank in ranks]
    ranks[killed].process.kill()
    assert ranks[1 - killed].status() == 75
    assert f"rank {killed} is gone" in ranks[1 - killed].text
    until(lambda: not any(map(alive, engines)), "an engine outlived its rank")


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_silent_rank_counts_as_lost(start: Callable[..., Rank], stopped: int) -> None:
    ranks = pair(start)
    ranks[stopped].process.send_signal(signal.SIGSTOP)
    other = ranks[1 - stopped]
    assert other.status() == 75
    assert "is silent" in other.text
    assert not alive(other.engine_pid)
    ranks[stopped].process.send_signal(signal.SIGCONT)
    assert ranks[stopped].status() == 75
    assert not alive(ranks[stopped].engine_pid)


@pytest.mark.parametrize("ending", [0, 1])
@pytest.mark.parametrize(("engine_status", "expected"), [(0, 1), (3, 3)])
def test_an_engine_that_ends_ends_the_whole_engine_and_never_with_0(
    start: Callable[..., Rank], ending: int, engine_status: int, expected: int
) -> None:
    port = free_port()
    short = ["sh", "-c", f"sleep 0.5; exit {engine_status}"]
    ranks = [start(number, port, engine=short if number == ending else ENGINE) for number in (0, 1)]
    assert ranks[ending].status() == expected
    assert ranks[1 - ending].status() == 75
    assert f"rank {ending}: the engine ended with status {engine_status}" in ranks[1 - ending].text


def test_sigterm_ends_one_rank_with_0_and_sends_the_other_back_to_the_meeting(start: Callable[..., Rank]) -> None:
    head, follower = pair(start)
    head.process.terminate()
    assert head.status() == 0
    assert follower.status() == 75
    assert "rank 0: asked to stop" in follower.text


def test_sigterm_to_all_ranks_is_an_orderly_end_of_all(start: Callable[..., Rank]) -> None:
    slow = ["sh", "-c", 'trap "sleep 0.5; exit 0" TERM; echo up; while :; do sleep 0.05; done']
    port = free_port()
    ranks = [start(0, port, engine=slow), start(1, port, engine=slow)]
    for rank in ranks:
        rank.wait_for("up\n")
    for rank in ranks:
        rank.process.terminate()
    assert [rank.status() for rank in ranks] == [0, 0]


def test_sigterm_while_waiting_is_an_orderly_end(start: Callable[..., Rank]) -> None:
    for rank in (start(0, free_port()), start(1, free_port())):
        rank.wait_for("waiting")
        rank.process.terminate()
        assert rank.status() == 0


def test_an_engine_that_does_not_heed_sigterm_is_killed_with_its_children(start: Callable[..., Rank]) -> None:
    deaf = ["sh", "-c", 'trap "" TERM; sleep 1000 & echo child $!; wait; sleep 1000']
    port = free_port()
    ranks = [start(number, port, engine=deaf, stop_limit="0.3") for number in (0, 1)]
    for rank in ranks:
        rank.wait_for("child ")
    children = [int(rank.text.partition("child ")[2].split()[0]) for rank in ranks]
    ranks[0].process.terminate()
    assert ranks[0].status() == 0
    assert ranks[1].status() == 75
    until(lambda: not any(map(alive, children)), "a child of the engine is left")


def test_a_lost_rank_is_joined_again_in_a_new_epoch(start: Callable[..., Rank]) -> None:
    port = free_port()
    head, follower = start(0, port), start(1, port)
    follower.wait_for("engine started")
    follower.process.kill()
    assert head.status() == 75
    again = start(0, port)
    again.wait_for("waiting for rank [1]")
    back = start(1, port)
    for rank in (again, back):
        rank.wait_for("engine started")
    assert again.epoch == back.epoch != head.epoch


def test_a_second_follower_cannot_join_an_engine_that_runs(start: Callable[..., Rank]) -> None:
    head, _ = pair(start)
    port = int(head.process.args[head.process.args.index("--port") + 1])  # type: ignore[union-attr,index]
    late = start(1, port)
    late.wait_for("waiting for the head")
    time.sleep(0.5)
    assert "engine started" not in late.text
    assert head.process.poll() is None


@pytest.mark.parametrize("late", [0, 1])
def test_ranks_with_other_settings_refuse_each_other_at_once(start: Callable[..., Rank], late: int) -> None:
    port = free_port()
    ranks = {1 - late: start(1 - late, port, digest="one")}
    ranks[1 - late].wait_for("waiting")
    ranks[late] = start(late, port, digest="two")
    for rank in ranks.values():
        assert rank.status() == 78
        assert "was given other settings" in rank.text
        assert "engine started" not in rank.text


def test_ranks_with_other_builds_refuse_each_other(start: Callable[..., Rank], tmp_path: Path) -> None:
    port = free_port()
    ranks = []
    for number, version in enumerate(("0.32.0", "0.31.0")):
        program = tmp_path / version / "bin" / "vllm"
        program.parent.mkdir(parents=True)
        (tmp_path / version / f"lib/python3.11/site-packages/vllm-{version}.dist-info").mkdir(parents=True)
        program.write_text("#!/bin/sh\nexec sleep 1000\n")
        program.chmod(0o755)
        ranks.append(start(number, port, engine=[str(program), "serve"]))
    for rank in ranks:
        assert rank.status() == 78
        assert "rank 1" in rank.text
        assert "has vllm-0.31.0, the head has vllm-0.32.0" in rank.text


def test_strangers_at_the_port_do_not_disturb_the_meeting(start: Callable[..., Rank]) -> None:
    port = free_port()
    head = start(0, port)
    head.wait_for("waiting for rank [1]")
    for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\xff\xfe\n", b"[1]\n", b'{"kind": "hello"}\n', b""):
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(noise)
    with socket.create_connection(("127.0.0.1", port)):
        follower = start(1, port)
        for rank in (head, follower):
            rank.wait_for("engine started")


def test_an_engine_that_never_answers_is_given_up_at_its_load_limit(
    start: Callable[..., Rank], health: tuple[str, threading.Event]
) -> None:
    port = free_port()
    head, follower = start(0, port, health=health[0], load_limit="0.6"), start(1, port)
    assert head.status() == 1
    assert follower.status() == 75
    assert "did not answer within 0.6 s" in follower.text


def test_a_program_that_is_missing_is_named(start: Callable[..., Rank]) -> None:
    port = free_port()
    head, follower = start(0, port, engine=["/nowhere/vllm"]), start(1, port)
    assert head.status() == 1
    assert follower.status() == 75
    assert "cannot start /nowhere/vllm" in follower.text


def test_a_head_that_ends_right_after_the_epoch_is_heard_of(start: Callable[..., Rank]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE)
        follower = start(1, listener.getsockname()[1])
        head = listener.accept()[0]
        said = [{"kind": "epoch", "epoch": "1-a"}, {"kind": "gone", "reason": "cannot start vllm"}]
        with head:
            head.recv(4096)
            head.sendall("".join(json.dumps(one) + "\n" for one in said).encode())
        assert follower.status() == 75
    assert "rank 0: cannot start vllm" in follower.text
