"""The proxy before gateways, as it is rendered: ids that no client chooses, and a second gateway when one dies."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pooled import pooled

from fleetctl.render.proxy import haproxy_config, proxy_files
from fleetctl.render.release import ProxyConfig

pytestmark = pytest.mark.skipif(
    shutil.which("haproxy") is None or os.geteuid() != 0, reason="haproxy is not installed, or this is not root"
)


class Gateway:
    """Stands for a gateway: notes requests, and answers them or breaks the connection."""

    def __init__(self, address: str, port: int) -> None:
        self.seen: list[dict[str, str]] = []
        self.dies = False
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._say(b"ok")

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                gateway.seen.append({name.lower(): value for name, value in self.headers.items()})
                if gateway.dies:
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                else:
                    self._say(b"{}")

            def _say(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                """Not here."""

        self.server = ThreadingHTTPServer((address, port), Handler)
        # A health check has its answer before all of it is written.
        self.server.handle_error = lambda request, client: None  # type: ignore[method-assign]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def fleet() -> Iterator[tuple[int, list[Gateway]]]:
    """The port of a running proxy, and its two gateways."""
    port, clients = free_port(), free_port()
    boxes = {
        name: {"address": address, "memory": "128GiB", "reserve": "16GiB"}
        for name, address in (("a", "127.0.0.2"), ("b", "127.0.0.3"))
    }
    passwords = {role: {"env": "X"} for role in ("gateway", "worker", "operator")}
    pool = {"nats": {"boxes": ["a"], "passwords": passwords}, "gateways": ["a", "b"], "port": port}
    proxy = {"box": "a", "port": clients, "check_interval": "50ms"}
    config = pooled(boxes=boxes, pool=pool, proxy=proxy).proxy
    assert config is not None
    folder = Path(tempfile.mkdtemp(prefix="fleetctl-test-proxy-"))
    folder.chmod(0o755)
    gateways = [Gateway(address, port) for address in ("127.0.0.2", "127.0.0.3")]
    process = start(config, folder)
    try:
        deadline = time.monotonic() + 20
        while (http_status(clients) or {}).get("usable") != {"minilm": 2, "small": 2, "qwen": 0}:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        yield clients, gateways
    finally:
        process.kill()
        process.wait(10)
        for gateway in gateways:
            gateway.server.shutdown()
            gateway.server.server_close()
        shutil.rmtree(folder)


def start(config: ProxyConfig, folder: Path) -> subprocess.Popen[bytes]:
    for file in proxy_files(config):
        (folder / Path(file.path).name).write_text(file.content)
    text = haproxy_config(config).replace("/run/fleetctl-proxy", str(folder))
    (folder / "haproxy.cfg").write_text(text)
    return subprocess.Popen(["haproxy", "-db", "-q", "-f", str(folder / "haproxy.cfg")], stdout=subprocess.DEVNULL)


def http_status(port: int) -> Any:
    try:
        client = http.client.HTTPConnection("127.0.0.2", port, timeout=5)
        client.request("GET", "/fleetctl/health")
        return json.loads(client.getresponse().read())
    except OSError:
        return None


def post(port: int, body: bytes, **headers: str) -> int:
    client = http.client.HTTPConnection("127.0.0.2", port, timeout=20)
    client.request("POST", "/v1/embeddings", body, {name.replace("_", "-"): value for name, value in headers.items()})
    return client.getresponse().status


ASK = json.dumps({"model": "minilm", "input": "a"}).encode()


def test_no_client_chooses_the_id_of_its_request(fleet: tuple[int, list[Gateway]]) -> None:
    port, gateways = fleet
    for _ in range(4):
        assert post(port, ASK, x_request_id="mine") == 200
    seen = [one["x-request-id"] for gateway in gateways for one in gateway.seen]
    assert len(set(seen)) == 4 and "mine" not in seen
    assert all(gateway.seen for gateway in gateways), "both get requests"


def test_a_second_gateway_gets_the_request_under_its_id_when_the_first_one_dies(
    fleet: tuple[int, list[Gateway]],
) -> None:
    port, (first, second) = fleet
    first.dies = True
    for _ in range(4):
        assert post(port, ASK) == 200
    # Without an id are the proxy's own questions to one that failed a request.
    lost, found = ({one["x-request-id"] for one in g.seen if "x-request-id" in one} for g in (first, second))
    assert lost and lost <= found and len(found) == 4


def test_a_body_that_is_no_json_finds_its_model_by_a_header(fleet: tuple[int, list[Gateway]]) -> None:
    port, gateways = fleet
    packed = b"\x82\xa5model\xa6minilm\xa5input\xa1a"
    assert post(port, packed, content_type="application/msgpack") == 404
    assert post(port, packed, content_type="application/msgpack", x_model="minilm") == 200
    assert sum(len(gateway.seen) for gateway in gateways) == 1


def test_batch_jobs_see_who_waits_and_what_is_free(fleet: tuple[int, list[Gateway]]) -> None:
    told = http_status(fleet[0])
    assert told["queued"] == {"minilm": 0, "small": 0, "qwen": 0}
    assert (told["usable"]["qwen"], told["free"]["minilm"], told["free"]["small"]) == (0, 8000, 8000)
