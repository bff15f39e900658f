"""HAProxy with the rendered configuration on loopback, and small servers that behave as engines."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fleetctl.render.proxy import proxy_files
from fleetctl.render.release import ProxyConfig


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Engine:
    """Answers /health, and everything else after ``seconds``; a streaming request gets one chunk at a time.

    What a request has under "echo" comes back with the answer.
    """

    def __init__(self, port: int, name: str, *, seconds: float = 0.02) -> None:
        self.port, self.name, self.seconds = port, name, seconds
        self.running = self.most = self.answered = self.streaming = 0
        # "500" and the like: to every completion; "hang": no answer to any; "reading": none either, but the cache fills
        # with a long prompt. /health and /metrics are answered with all of them. "dumb": no answer to anything.
        self.fault = ""
        self.steps = True  # /metrics has what the core tells of its steps
        self.well_again = asyncio.Event()  # ends a "hang" and the reading of a prompt
        self.failed = 0
        self.seen: list[dict[str, str]] = []
        self.asked: list[tuple[str, bytes]] = []  # first line and body
        self.server: asyncio.Server | None = None
        self.connections: set[asyncio.StreamWriter] = set()

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=tls)

    async def kill(self) -> None:
        """Gone at once, with whatever is on it."""
        if self.server is not None:
            self.server.close()
            for writer in self.connections:
                writer.transport.abort()
            self.server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(writer)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.rstrip().split("\r\n")
            headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines if ": " in line)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            if self.fault == "dumb":
                await self.well_again.wait()
            if first.split()[1] == "/health":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            elif first.split()[1] == "/metrics":
                told = f'# HELP\nvllm:kv_cache_usage_perc{{engine="0"}} {self.cache()}\n' if self.steps else "# HELP\n"
                writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(told)}\r\n\r\n{told}".encode())
            else:
                self.seen.append(headers)
                self.asked.append((first, body))
                await self._answer(writer, json.loads(body or b"{}"))
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.connections.discard(writer)
            writer.close()

    def cache(self) -> float:
        """Share of the cache in use: of prompts that have been read, and of one that is being read."""
        return self.answered / 1000 + (time.monotonic() % 1000 if self.fault == "reading" else 0)

    async def _answer(self, writer: asyncio.StreamWriter, asked: dict[str, object]) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if asked.get("poison"):
                await self.kill()
                return
            if self.fault in ("hang", "reading"):
                await self.well_again.wait()
            if self.fault.isdigit():
                self.failed += 1
                writer.write(f"HTTP/1.1 {self.fault} Not This Time\r\nContent-Length: 0\r\n\r\n".encode())
                return
            if asked.get("stream"):
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
                )
                self.streaming += 1
                try:
                    for number in range(5):
                        chunk = f"data: {number}\n\n".encode()
                        writer.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
                        await writer.drain()
                        await asyncio.sleep(self.seconds)
                    writer.write(b"0\r\n\r\n")
                finally:
                    self.streaming -= 1
            else:
                await asyncio.sleep(self.seconds)
                body = json.dumps({"engine": self.name} | {k: v for k, v in asked.items() if k == "echo"}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            self.answered += 1
        finally:
            self.running -= 1


class Haproxy:
    """A running HAProxy and its runtime API."""

    def __init__(self, folder: Path, config: ProxyConfig, process: subprocess.Popen[bytes]) -> None:
        self.folder, self.config, self.process = folder, config, process
        self.url = f"http://{config.address}:{config.port}"

    def command(self, line: str) -> str:
        """Answer of the runtime API to one command."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(self.folder / "run/admin.sock"))
            sock.sendall(line.encode() + b"\n")
            answer = b""
            while data := sock.recv(65536):
                answer += data
        return answer.decode()

    def reload(self) -> None:
        """A new worker takes over; the old one ends with its last connection."""
        before = self.pid
        self.process.send_signal(signal.SIGUSR2)
        end = time.monotonic() + 20
        while self.pid in (before, ""):
            assert time.monotonic() < end, self.log
            time.sleep(0.02)

    @property
    def pid(self) -> str:
        """Of the worker that answers the runtime API; nothing while none does."""
        try:
            lines = self.command("show info").splitlines()
        except OSError:
            return ""
        return next((line.split()[1] for line in lines if line.startswith("Pid:")), "")

    def state(self, server: str, state: str) -> None:
        assert self.command(f"set server {server} state {state}").strip() == ""

    def status(self, server: str) -> str:
        """Status of BACKEND/NAME as `show stat` gives it."""
        return self._row(server)[17]

    def in_rotation(self, server: str) -> bool:
        """The server gets new requests: it is up and has a weight."""
        row = self._row(server)
        return row[17].startswith("UP") and int(row[18]) > 0

    def requests_on(self, server: str) -> int:
        """Requests that run on it."""
        return int(self._row(server)[4])

    def _row(self, server: str) -> list[str]:
        rows = [line.split(",") for line in self.command("show stat").splitlines() if line]
        return next(row for row in rows if f"{row[0]}/{row[1]}" == server)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()


def write_files(config: ProxyConfig, folder: Path, secrets: dict[str, str] | None = None) -> Path:
    """Put the rendered files under ``folder``, which takes the place of /etc/fleetctl/proxy and of /run."""
    (folder / "run").mkdir(exist_ok=True)
    for file in proxy_files(config):
        text = file.content.replace("/etc/fleetctl/proxy", str(folder)).replace("/run/fleetctl-proxy", f"{folder}/run")
        for name, value in (secrets or {}).items():
            text = text.replace(f"@secret:{name}@", value)
        target = folder / Path(file.path).name
        target.write_bytes(text.encode())
        target.chmod(file.mode)
    return folder / "haproxy.cfg"


@contextmanager
def haproxy(config: ProxyConfig, secrets: dict[str, str] | None = None) -> Iterator[Haproxy]:
    """HAProxy with the rendered configuration, in master-worker mode as its unit runs it."""
    folder = Path(tempfile.mkdtemp(prefix="hold-"))
    folder.chmod(0o755)
    path = write_files(config, folder, secrets)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(["haproxy", "-W", "-f", str(path)], stdout=log, stderr=log)
    try:
        end = time.monotonic() + 20
        while True:
            try:
                socket.create_connection((config.address, config.port), timeout=1).close()
                with socket.socket(socket.AF_UNIX) as admin:
                    admin.connect(str(folder / "run/admin.sock"))
                break
            except OSError:
                text = (folder / "log").read_text()
                assert process.poll() is None and time.monotonic() < end, text
                time.sleep(0.02)
        yield Haproxy(folder, config, process)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
        shutil.rmtree(folder)
