"""Steps on a real HAProxy: servers that are down, or have no weight, are drained too, and undone all is as it was."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleetctl.onbox import haproxy
from fleetctl.onbox.main import OPS, Call
from fleetctl.steps.traffic import Hold, Open

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed")

CONFIG = """
global
    stats socket {folder}/admin.sock level admin
defaults
    mode http
    timeout connect 1s
    timeout client 5s
    timeout server 5s
frontend clients
    bind unix@{folder}/clients.sock
    default_backend qwen
backend qwen
    default-server check inter 50ms rise 1 fall 1
    server a 127.0.0.1:{a}
    server b 127.0.0.1:{b}
"""


class Proxy:
    """HAProxy with an engine that runs and one that is to come."""

    def __init__(self, folder: Path) -> None:
        self.socket, self.ports = str(folder / "admin.sock"), [_free_port(), _free_port()]
        (folder / "haproxy.cfg").write_text(CONFIG.format(folder=folder, a=self.ports[0], b=self.ports[1]))
        self._servers: list[ThreadingHTTPServer] = []
        self.engine_comes(0)
        self._process = subprocess.Popen(["haproxy", "-q", "-f", str(folder / "haproxy.cfg")])
        self.seen_to(lambda: self.statuses() == {"qwen/a": "UP", "qwen/b": "DOWN"})

    def engine_comes(self, number: int) -> None:
        server = ThreadingHTTPServer(("127.0.0.1", self.ports[number]), BaseHTTPRequestHandler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self._servers.append(server)

    def statuses(self) -> dict[str, str]:
        told = haproxy.look(self.socket)
        servers = told["servers"] if told else {}
        return {name: server["status"] for name, server in servers.items() if name in ("qwen/a", "qwen/b")}

    def seen_to(self, so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not so():
            assert time.monotonic() < deadline, self.statuses()
            time.sleep(0.02)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for server in self._servers:
            server.shutdown()
            server.server_close()


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture
def proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    monkeypatch.setattr(haproxy, "STATES", str(tmp_path / "states"))
    running = Proxy(tmp_path)
    yield running
    running.close()


def on(proxy: Proxy) -> tuple[Any, Any]:
    """A context whose box is this machine, and a step about both servers."""
    box = SimpleNamespace(call=lambda op, **args: OPS[op](Call(1, lambda message: None), **args))
    settings = SimpleNamespace(admin_socket=proxy.socket, unit="fleetctl-proxy.service")
    context = SimpleNamespace(box=lambda step: box, proxy=settings)
    return context, SimpleNamespace(box="a", params={"servers": ["qwen/a", "qwen/b"]})


def test_a_server_that_is_down_stays_out_when_its_engine_comes_up(proxy: Proxy) -> None:
    context, step = on(proxy)
    assert not Hold().check(context, step)
    Hold().do(context, step)
    proxy.engine_comes(1)
    proxy.seen_to(lambda: proxy.statuses() == {"qwen/a": "DRAIN", "qwen/b": "DRAIN"})
    assert Hold().check(context, step)


def test_one_that_has_lost_its_weight_is_drained_before_it_gets_it_back(proxy: Proxy) -> None:
    context, step = on(proxy)
    step.params["servers"] = ["qwen/a"]
    haproxy.ask(proxy.socket, "set server qwen/a weight 0%")
    assert not Hold().check(context, step)
    Hold().do(context, step)
    haproxy.ask(proxy.socket, "set server qwen/a weight 100%")
    assert proxy.statuses()["qwen/a"] == "DRAIN"


def test_undone_it_waits_for_those_that_were_up_alone(proxy: Proxy) -> None:
    context, step = on(proxy)
    prior = Hold().prior(context, step)
    Hold().do(context, step)
    Hold().undo(context, step, prior)
    assert proxy.statuses() == {"qwen/a": "UP", "qwen/b": "DOWN"}
    proxy.engine_comes(1)
    proxy.seen_to(lambda: proxy.statuses()["qwen/b"] == "UP")


def test_a_copy_that_got_another_port_is_back_at_its_earlier_one_when_its_turn_is_undone(proxy: Proxy) -> None:
    context, hold = on(proxy)
    hold.params["servers"] = ["qwen/a"]
    before, after = (
        SimpleNamespace(
            id="l/qwen@a", backend="qwen", server="a", address="127.0.0.1", port=port, concurrency=concurrency
        )
        for port, concurrency in ((proxy.ports[0], 12), (proxy.ports[1], 8))
    )
    context.plan = SimpleNamespace(source=SimpleNamespace(engines=[before]), release=SimpleNamespace(engines=[after]))
    params: dict[str, Any] = {"server": "qwen/a", "address": "127.0.0.1", "port": proxy.ports[1], "maxconn": 8}
    opened: Any = SimpleNamespace(box="a", params=params)
    prior = Hold().prior(context, hold)
    Hold().do(context, hold)
    proxy.engine_comes(1)
    Open().do(context, opened)
    assert haproxy.addresses(proxy.socket, ["qwen/a"]) == {("127.0.0.1", proxy.ports[1])}
    Open().undo(context, opened, {})
    Hold().undo(context, hold, prior)
    assert haproxy.addresses(proxy.socket, ["qwen/a"]) == {("127.0.0.1", proxy.ports[0])}
    assert proxy.statuses()["qwen/a"] == "UP"
