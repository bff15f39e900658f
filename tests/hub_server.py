"""A hub in this process: answers what huggingface_hub asks for from a folder, and keeps count of what it sent."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0" * 39 + "1"


@dataclass
class Hub:
    """Where it listens, and what it sent."""

    address: str = ""
    folder: Path = Path()
    model: str = "office/tiny"
    gated: bool = False
    sent: int = 0
    """Bytes of files that were sent."""
    asked: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)


def etag_of(file: Path) -> str:
    """What the hub names a file by: the SHA-256 of a large one (LFS), git's own checksum of a small one."""
    data = file.read_bytes()
    if file.suffix in (".safetensors", ".bin", ".gguf", ".pt"):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@contextmanager
def hub_of(folder: Path) -> Iterator[Hub]:
    """Serve the model in ``folder`` as office/tiny."""
    hub = Hub(folder=folder)

    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            hub.asked.append(f"{self.command} {path}")
            hub.tokens.add(self.headers.get("authorization") or "")
            if hub.gated:
                self.reply(403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "ask first"})
            elif path in {
                f"/api/models/{hub.model}",
                *(f"/api/models/{hub.model}/revision/{at}" for at in ("main", COMMIT)),
            }:
                sizes = "blobs=" in self.path
                siblings = [
                    {"rfilename": one.name, **({"size": one.stat().st_size} if sizes else {})}
                    for one in hub.folder.iterdir()
                ]
                about = {"id": hub.model, "modelId": hub.model, "sha": COMMIT, "siblings": siblings, "private": False}
                self.reply(200, json.dumps(about).encode(), {"Content-Type": "application/json"})
            elif path.startswith(f"/api/models/{hub.model}/tree/"):
                tree = [
                    {"type": "file", "path": one.name, "size": one.stat().st_size, "oid": "0" * 40}
                    for one in hub.folder.iterdir()
                ]
                self.reply(200, json.dumps(tree).encode(), {"Content-Type": "application/json"})
            elif path.startswith((f"/{hub.model}/resolve/main/", f"/{hub.model}/resolve/{COMMIT}/")):
                self.file(hub.folder / path.rsplit("/", 1)[1])
            else:
                self.reply(404, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "not here"})

        def file(self, file: Path) -> None:
            if not file.is_file():
                self.reply(404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Error-Message": "no such file"})
                return
            whole = file.stat().st_size
            common = {"X-Repo-Commit": COMMIT, "ETag": f'"{etag_of(file)}"', "Accept-Ranges": "bytes"}
            wanted = self.headers.get("range")
            if wanted is None:
                self.reply(200, b"" if self.command == "HEAD" else file.read_bytes(), common, whole)
                return
            first, last = (int(word) for word in wanted.removeprefix("bytes=").split("-"))
            with file.open("rb") as data:
                data.seek(first)
                part = data.read(last - first + 1)
            self.reply(206, part, {**common, "Content-Range": f"bytes {first}-{first + len(part) - 1}/{whole}"})

        def reply(self, status: int, body: bytes, headers: dict[str, str], length: int | None = None) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
                hub.sent += len(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
