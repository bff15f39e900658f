"""The stand-in engine starts, stops and fails as vLLM does: processes, memory, port, exit status, log."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from standin_process import KEY, Running, free_port, metric, metrics, start, until


@pytest.fixture
def slow() -> Iterator[Running]:
    """An engine that makes about 36 tokens a second: requests last long enough to be interrupted."""
    with start(answer_tokens=1000) as running:
        yield running.wait_ready()


def resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def gone(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_the_port_is_bound_but_closed_until_the_engine_is_ready() -> None:
    with start(load_seconds=0.6) as engine:
        engine.wait_log("Starting to load model")
        assert engine.health() == 0
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", engine.port))
        engine.wait_ready()


def test_a_port_that_is_taken_ends_it_at_once() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)), start(load_seconds=60, port=port) as engine:
        assert engine.wait_exit() == 1
        assert "OSError: [Errno 98] Address already in use" in engine.log()


def test_it_can_listen_on_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "engine.sock")
    with start("--uds", path) as engine:
        engine.wait_log("Application startup complete.")
        with httpx.Client(transport=httpx.HTTPTransport(uds=path)) as client:
            assert client.get("http://engine/v1/models").status_code == 200
        engine.process.terminate()
        assert engine.wait_exit() == 0
        assert not Path(path).exists()


def test_the_child_has_vllms_name_and_holds_the_memory() -> None:
    with start(memory_bytes=48 * 2**20) as engine:
        engine.wait_ready()
        assert Path(f"/proc/{engine.process.pid}/comm").read_text() == "vllm\n"
        core = engine.children()["VLLM::EngineCor"]
        assert Path(f"/proc/{core}/cmdline").read_bytes().strip(b"\0") == b"VLLM::EngineCore"
        assert resident(core) > 48 * 2**20 > resident(engine.process.pid)


def test_the_log_reads_like_vllms() -> None:
    with start("--max-model-len", "262144") as engine:
        engine.wait_ready()
        engine.complete()
        for words in (
            "Loading safetensors checkpoint shards: 100% Completed | 8/8",
            "Model loading took 71.00 GiB memory and",
            "Available KV cache memory: 13.00 GiB",
            "GPU KV cache size: 760,000 tokens, Maximum concurrency for 262,144 tokens per request: 2.90x",
            "Application startup complete.",
            '"POST /v1/completions HTTP/1.1" 200 OK',
        ):
            assert words in engine.log()


def test_sigterm_stops_it_with_status_0_and_nothing_is_left() -> None:
    with start(stop_seconds=0.3) as engine:
        core = engine.wait_ready().children()["VLLM::EngineCor"]
        began = time.monotonic()
        engine.process.terminate()
        assert engine.wait_exit() == 0
        assert time.monotonic() - began >= 0.3 and gone(core)


def test_sigterm_while_loading_ends_it_by_sigint() -> None:
    with start(load_seconds=60) as engine:
        engine.wait_log("Starting to load model")
        engine.process.terminate()
        assert engine.wait_exit() == -signal.SIGINT


def test_sigterm_aborts_running_requests(slow: Running) -> None:
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(slow.complete, max_tokens=1000)
        until("a running request", lambda: metric(metrics(slow), "vllm:num_requests_running") == 1)
        slow.process.terminate()
        assert pending.result().json()["choices"][0]["finish_reason"] == "abort"
    assert slow.wait_exit() == 0


def test_shutdown_timeout_lets_running_requests_finish() -> None:
    with start("--shutdown-timeout", "15", answer_tokens=1000) as engine:
        engine.wait_ready()
        with ThreadPoolExecutor(1) as pool:
            pending = pool.submit(engine.complete, max_tokens=20)
            until("a running request", lambda: metric(metrics(engine), "vllm:num_requests_running") == 1)
            engine.process.terminate()
            assert pending.result().json()["choices"][0]["finish_reason"] == "length"
        assert engine.wait_exit() == 0


def test_a_client_that_goes_away_aborts_its_request(slow: Running) -> None:
    body = {"prompt": "x", "max_tokens": 1000, "stream": True}
    with slow.client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        assert metric(metrics(slow), "vllm:num_requests_running") == 1
    until("an idle engine", lambda: metric(metrics(slow), "vllm:num_requests_running") == 0)
    assert metric(metrics(slow), "vllm:request_success_total", finished_reason="abort") == 1


def test_requests_over_the_limit_wait() -> None:
    with start("--max-num-seqs", "1", speed=3, answer_tokens=1000) as engine, ThreadPoolExecutor(3) as pool:
        engine.wait_ready()
        pending = [pool.submit(engine.complete, max_tokens=20) for _ in range(3)]
        until("two waiting", lambda: metric(metrics(engine), "vllm:num_requests_waiting") == 2)
        assert metric(metrics(engine), "vllm:num_requests_running") == 1
        assert [item.result().status_code for item in pending] == [200] * 3


def test_a_dead_engine_core_fails_requests_and_ends_the_server_with_status_0(slow: Running) -> None:
    body = {"prompt": "x", "max_tokens": 1000, "stream": True}
    with slow.client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        os.kill(slow.children()["VLLM::EngineCor"], signal.SIGKILL)
        rest = [line for line in lines if line]
    assert "EngineCore encountered an issue" in rest[-2] and rest[-1] == "data: [DONE]"
    assert slow.health() == 503
    response = slow.complete()
    assert (response.status_code, response.json()["error"]["type"]) == (500, "InternalServerError")
    assert slow.wait_exit() == 0


@pytest.mark.parametrize("orphans", [False, True])
def test_a_killed_server_leaves_its_core_behind_only_if_told_to(orphans: bool) -> None:
    with start(orphans=orphans) as engine:
        core = engine.wait_ready().children()["VLLM::EngineCor"]
        engine.process.kill()
        engine.wait_exit()
        with socket.create_server(("127.0.0.1", engine.port)):
            pass
        if orphans:
            time.sleep(0.3)
            assert not gone(core)
        else:
            until("the core is gone", lambda: gone(core))


def test_two_engines_with_one_port_cannot_both_serve() -> None:
    port = free_port()
    with start("--api-key", KEY, port=port) as first, start(port=port, load_seconds=0.4) as second:
        first.wait_ready()
        assert second.wait_exit() == 1
        assert first.complete().status_code == 200
