"""A split over two ranks, both on the loopback interface: they meet, serve, and fail as vLLM's do."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from standin_process import Running, free_port, start


@contextmanager
def rank(number: int, master: int, *options: str, **settings: object) -> Iterator[Running]:
    """One rank of a split of two."""
    headless = ["--headless"] if number else []
    words = ["--nnodes", "2", "--node-rank", str(number), "-tp", "2", "--master-addr", "127.0.0.1"]
    with start(*words, "--master-port", str(master), *headless, *options, **settings) as running:
        yield running


@contextmanager
def pair(**settings: object) -> Iterator[tuple[Running, Running]]:
    """A head that is ready, and its follower."""
    master = free_port()
    with rank(1, master, **settings) as follower, rank(0, master, **settings) as head:
        yield head.wait_ready(), follower


def test_the_ranks_find_each_other_and_have_twice_the_cache() -> None:
    master = free_port()
    with rank(1, master) as follower:
        follower.wait_log("failed to connect")
        with rank(0, master) as head:
            assert head.wait_ready().complete().status_code == 200
            assert "GPU KV cache size: 1,520,000 tokens" in head.log()
            assert set(head.children()) == {"VLLM::EngineCor", "VLLM::Worker_TP"}
            assert set(follower.children()) == {"VLLM::Worker_TP"}
            assert follower.health() == 0


def test_a_head_alone_waits_and_then_gives_up() -> None:
    with rank(0, free_port(), rendezvous_timeout=0.5) as head:
        head.wait_log("Init torch distributed begin.")
        assert head.wait_exit() == 1
        assert "Timed out after 0 seconds waiting for clients. 1/2 clients joined." in head.log()


def test_a_follower_alone_gives_up_too() -> None:
    with rank(1, free_port(), rendezvous_timeout=0.5) as follower:
        assert follower.wait_exit() == 1
        assert "The client socket has timed out after 500ms while trying to connect to" in follower.log()


def test_a_rendezvous_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with rank(0, port) as head:
            assert head.wait_exit() == 1
            assert f"port: {port}, useIpv6: false, code: -98, name: EADDRINUSE" in head.log()


def test_a_lost_follower_shows_at_the_next_request_and_the_head_exits_with_0() -> None:
    with pair() as (head, follower):
        os.killpg(follower.process.pid, signal.SIGKILL)
        time.sleep(0.3)
        assert head.health() == 200
        response = head.complete()
        assert (response.status_code, response.json()["error"]["message"]) == (
            500,
            "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        )
        assert head.wait_exit() == 0
        assert "Connection closed by peer" in head.log()


def test_a_follower_without_its_head_never_rejoins() -> None:
    with pair() as (head, follower):
        os.killpg(head.process.pid, signal.SIGKILL)
        follower.wait_log("Failed to recv, got 0 bytes. Connection was likely closed.")
        assert follower.process.poll() is None
        follower.process.terminate()
        assert follower.wait_exit() == 0


def test_a_follower_may_be_set_to_exit_without_its_head() -> None:
    with pair(on_head_lost="exit") as (head, follower):
        head.process.terminate()
        assert (head.wait_exit(), follower.wait_exit()) == (0, 0)


@pytest.mark.parametrize(("on_mismatch", "words"), [("fail", "max_model_len=None (head: 2048)"), ("hang", "begin.")])
def test_a_flag_on_one_rank_only_hangs_or_fails(on_mismatch: str, words: str) -> None:
    master = free_port()
    settings = {"on_mismatch": on_mismatch, "engine_ready_timeout": 0.8}
    with rank(1, master), rank(0, master, "--max-model-len", "2048", **settings) as head:
        assert head.wait_exit() == 1
        assert words in head.log()
        assert ("Init torch distributed ends." in head.log()) is False


def test_a_follower_that_fails_to_load_takes_the_head_down() -> None:
    master = free_port()
    with rank(1, master, exit_during_load=0.1, load_seconds=5) as follower, rank(0, master) as head:
        assert (follower.wait_exit(), head.wait_exit()) == (1, 1)
        assert "WorkerProc initialization failed" in head.log()
