"""ready.py: an engine's unit is active when the engine answers, and failed when it ends before that."""

from __future__ import annotations

import http.server
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "systemd" / "ready.py"


@pytest.fixture
def engine() -> Iterator[tuple[str, list[int]]]:
    """An address, and the statuses that it answers one after the other; the last one stays."""
    statuses = [200]

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(statuses.pop(0) if len(statuses) > 1 else statuses[0])
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/health", statuses
    server.shutdown()
    server.server_close()


def wait(url: str, pid: int) -> subprocess.CompletedProcess[str]:
    # A proxy of the operator must not stand between a box and its own engine.
    environment = {**os.environ, "MAINPID": str(pid), "http_proxy": "http://127.0.0.1:1"}
    command = [sys.executable, str(SCRIPT), url]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_it_waits_through_refusals_and_errors_until_200(engine: tuple[str, list[int]]) -> None:
    url, statuses = engine
    statuses[:] = [503, 500, 404, 200]
    done = wait(url, os.getpid())
    assert done.returncode == 0
    assert statuses == [200]
    assert f"{url} answers after" in done.stdout


def test_it_asks_health_through_a_unix_socket_once_somebody_listens_there(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    asked: list[bytes] = []

    class Health(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            asked.append(self.rfile.readline())
            status = b"503 Loading" if len(asked) == 1 else b"200 OK"
            self.wfile.write(b"HTTP/1.1 %b\r\nContent-Length: 0\r\n\r\n" % status)

    def listen() -> None:
        server = socketserver.ThreadingUnixStreamServer(str(path), Health)
        threading.Thread(target=server.serve_forever, daemon=True).start()

    threading.Timer(0.3, listen).start()
    done = wait(f"unix:{path}", os.getpid())
    assert (done.returncode, asked) == (0, [b"GET /health HTTP/1.1\r\n"] * 2), done.stderr


def test_it_ends_when_the_process_of_the_engine_is_gone() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    done = wait("http://127.0.0.1:1/health", gone.pid)
    assert done.returncode == 1
    assert "ended before" in done.stderr


def test_an_answer_of_somebody_else_does_not_make_a_dead_engine_ready(engine: tuple[str, list[int]]) -> None:
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    assert wait(engine[0], zombie.pid).returncode == 1
    zombie.wait()
