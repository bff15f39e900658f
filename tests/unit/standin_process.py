"""Starting stand-in engines as real processes on the loopback interface, for the tests of them."""

import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

VLLM = Path(__file__).resolve().parents[2] / "fleetctl" / "lab" / "standin" / "bin" / "vllm"
KEY = "sesame"
PATIENCE = 20.0


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody uses now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def until(what: str, condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds; fail naming `what` after a generous time."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        time.sleep(0.02)


def descendants(pid: int) -> list[int]:
    """Child processes of `pid`, and theirs."""
    found: list[int] = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child), *descendants(int(child))]
    return found


@dataclass
class Running:
    """One engine process with its log file, control file and a client that has the API key."""

    process: "subprocess.Popen[bytes]"
    port: int
    folder: Path
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        headers = {"authorization": f"Bearer {KEY}"}
        self.client = httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def health(self) -> int:
        """The status of /health, 0 when nothing listens."""
        try:
            return httpx.get(f"{self.url}/health", timeout=PATIENCE).status_code
        except httpx.TransportError:
            return 0

    def wait_ready(self) -> "Running":
        until(f"ready; log:\n{self.log()}", lambda: self.process.poll() is not None or self.health() == 200)
        assert self.process.poll() is None, self.log()
        return self

    def wait_log(self, words: str) -> None:
        until(f"{words!r} in the log", lambda: words in self.log())

    def wait_exit(self) -> int:
        return self.process.wait(PATIENCE)

    def set(self, **settings: object) -> None:
        """Write the control file, in one step as an editor would."""
        path = self.folder / "control.json"
        path.with_suffix(".new").write_text(json.dumps(settings))
        path.with_suffix(".new").replace(path)

    def complete(self, **more: Any) -> httpx.Response:
        """One small completion."""
        return self.client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2, **more})

    def children(self) -> dict[str, int]:
        """Short name to PID of the processes below the API server."""
        return {Path(f"/proc/{p}/comm").read_text().strip(): p for p in descendants(self.process.pid)}


@contextmanager
def start(*options: str, port: int | None = None, **settings: object) -> Iterator[Running]:
    """Start `vllm serve lab/model` with options and STANDIN_ settings; killed at the end, children too."""
    port = port or free_port()
    defaults: dict[str, object] = {"load_seconds": 0.05, "memory_bytes": 2**20}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("STANDIN_", "VLLM_"))}
        environ |= {"STANDIN_CONTROL": str(folder / "control.json"), "PYTHONDONTWRITEBYTECODE": "1"}
        for key, value in {**defaults, **settings}.items():
            environ[f"STANDIN_{key.upper()}"] = json.dumps(value)
        command = [str(VLLM), "serve", "lab/model", "--host", "127.0.0.1", "--port", str(port), *options]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)
        running = Running(process, port, folder)
        try:
            yield running
        finally:
            running.client.close()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def metrics(engine: Running) -> str:
    """The text of /metrics."""
    return engine.client.get("/metrics").text


def metric(text: str, name: str, **labels: str) -> float:
    """Sum of the samples of `name` that have `labels`."""
    total = 0.0
    for match in re.finditer(rf"^{re.escape(name)}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE):
        if all(f'{key}="{value}"' in (match.group(1) or "") for key, value in labels.items()):
            total += float(match.group(2))
    return total
