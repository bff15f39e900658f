"""Two proxies, as they are rendered for a floating address, before two gateways: one gateway is killed under load."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml
from echo_worker import EchoWorker
from gateways import Answer, GatewayProcess, gateway, until, worker
from natsrendered import GOLDEN
from natsserver import NatsServer, free_port, needs_nats

from fleetctl.pool import wire
from fleetctl.pool.wire import Envelope, Frame, Kind
from fleetctl.render.layout import render_layout
from fleetctl.render.proxy import haproxy_config, proxy_files
from fleetctl.render.release import ProxyConfig
from fleetctl.spec.fleet import Fleet

pytestmark = [
    needs_nats,
    pytest.mark.skipif(
        shutil.which("haproxy") is None or os.geteuid() != 0, reason="haproxy is not installed, or this is not root"
    ),
]
HOSTS = {"a": "127.0.0.2", "b": "127.0.0.3", "c": "127.0.0.4"}
FLOATING = "127.0.0.9"


def rendered(clients: int, gateways: int) -> ProxyConfig:
    """The cluster's proxies and gateways at addresses of this machine."""
    document = yaml.safe_load((GOLDEN / "cluster.yaml").read_text())
    for box, address in HOSTS.items():
        document["boxes"][box]["address"] = address
    document["proxy"] |= {"port": clients, "floating": {"address": FLOATING}, "check_interval": "50ms"}
    document["pool"]["port"] = gateways
    config = render_layout(Fleet.model_validate(document), "pool").proxy
    assert config is not None
    return config


@contextmanager
def proxy(config: ProxyConfig, box: str) -> Iterator[None]:
    """The HAProxy of a box for the length of a with block."""
    folder = Path(tempfile.mkdtemp(prefix="fleetctl-test-proxy-"))
    folder.chmod(0o755)
    for file in proxy_files(config, box):
        (folder / Path(file.path).name).write_text(file.content)
    text = haproxy_config(config, box).replace("/run/fleetctl-proxy", str(folder))
    (folder / "haproxy.cfg").write_text(text)
    process = subprocess.Popen(["haproxy", "-db", "-q", "-f", str(folder / "haproxy.cfg")], stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait(10)
        shutil.rmtree(folder)


def ask(host: str, port: int, method: str, path: str, body: str | None = None) -> Answer:
    """One request to a proxy."""
    client = http.client.HTTPConnection(host, port, timeout=30)
    client.request(method, path, body, {"content-type": "application/json"})
    return Answer(client.getresponse())


def sees(host: str, port: int, gateways: int) -> bool:
    """Whether a proxy has so many gateways that it can use."""
    try:
        told = json.loads(ask(host, port, "GET", "/fleetctl/health").body)
    except OSError:
        return False
    return bool(told["usable"]["minilm"] == gateways)


async def slowly(one: EchoWorker, envelope: Envelope, body: bytes) -> AsyncIterator[Frame]:
    """What was asked, after a while in which others come."""
    await asyncio.sleep(0.05)
    yield Frame(Kind.WHOLE, body, 200, envelope.content_type, "echo")


def test_a_gateway_that_is_killed_under_load_is_noticed_by_no_client_of_either_proxy(
    server: NatsServer, tmp_path: Path
) -> None:
    port, clients = free_port(), free_port()
    config, over = rendered(clients, port), threading.Event()

    def asks(host: str, number: int) -> list[tuple[str, Answer]]:
        found: list[tuple[str, Answer]] = []
        while not over.is_set():
            body = json.dumps({"model": "minilm", "input": f"{host} {number} {len(found)}"})
            found.append((body, ask(host, clients, "POST", "/v1/embeddings", body)))
        return found

    gateways: list[GatewayProcess] = []
    with ExitStack() as stack:
        at_work = stack.enter_context(worker(server.access, slowly))
        for box in config.boxes:
            listen = wire.Listen(HOSTS[box], port)
            gateways.append(stack.enter_context(gateway(tmp_path, server.access, box, listen=listen)))
            stack.enter_context(proxy(config, box))
        hosts = [*(HOSTS[box] for box in config.boxes), FLOATING]
        until(lambda: all(sees(host, clients, 2) for host in hosts))
        crowd = stack.enter_context(ThreadPoolExecutor(9))
        load = [crowd.submit(asks, host, number) for number in range(3) for host in hosts]
        stack.callback(over.set)
        until(lambda: len(at_work.seen) > 50)
        gateways[1].stop(signal.SIGKILL)
        count = len(at_work.seen)
        until(lambda: len(at_work.seen) > count + 100)
        over.set()
        answers = [answer for found in load for answer in found.result(30)]
    assert Counter(answer.status for _, answer in answers) == {200: len(answers)}
    assert [answer.body.decode() for _, answer in answers] == [body for body, _ in answers]
    assert len({envelope.id for envelope, _ in at_work.seen}) == len(at_work.seen) == len(answers)
