"""A registry of container images on this machine, behind a door that can be held while an image passes through it."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import socket
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from places import BASE

PACKAGE = "docker-registry"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
PATIENCE = 30.0  # seconds


@dataclass
class Door:
    """What stands before the registry. Of each answer ``most`` bytes pass until it is opened; None: all."""

    most: int | None = None
    held: threading.Event = field(default_factory=threading.Event)
    """An answer waits behind it."""

    def hold(self, most: int) -> None:
        """Let so many bytes of each answer through, and no more."""
        self.held.clear()
        self.most = most

    def open(self) -> None:
        """Let all through, also what waits."""
        self.most = None


@dataclass
class Registry:
    """A registry: where boxes reach it, and its door."""

    host: str
    door: Door
    inside: str

    def push(self, name: str, *sizes: int) -> str:
        """Put an image there, made of a layer of random bytes for each size, as NAME:TAG. Its name by digest."""
        layers = [_layer(f"file{number}", size) for number, size in enumerate(sizes)]
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Cmd": ["/none"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer) for layer in layers]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self._blob(name, json.dumps(config).encode(), CONFIG),
            "layers": [self._blob(name, layer, LAYER) for layer in layers],
        }
        repository, tag = name.split(":")
        text = json.dumps(manifest).encode()
        url = f"{self.inside}/v2/{repository}/manifests/{tag}"
        httpx.put(url, content=text, headers={"Content-Type": MANIFEST}, trust_env=False).raise_for_status()
        return f"{self.host}/{repository}@{_digest(text)}"

    def _blob(self, name: str, data: bytes, kind: str) -> dict[str, str | int]:
        begun = httpx.post(f"{self.inside}/v2/{name.split(':')[0]}/blobs/uploads/", trust_env=False)
        url = httpx.URL(begun.raise_for_status().headers["Location"]).copy_merge_params({"digest": _digest(data)})
        httpx.put(url, content=data, trust_env=False, timeout=PATIENCE).raise_for_status()
        return {"mediaType": kind, "digest": _digest(data), "size": len(data)}


def _layer(name: str, size: int) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = size
        tar.addfile(entry, io.BytesIO(os.urandom(size)))
    return whole.getvalue()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _program() -> Path:
    """Debian's registry, fetched by apt once and not installed. Skips the test where it cannot be had."""
    folder = BASE.with_name("registry")
    program = folder / "root/usr/bin/docker-registry"
    if program.exists():
        return program
    folder.mkdir(parents=True, exist_ok=True)
    fetched = subprocess.run(["apt-get", "-q", "download", PACKAGE], cwd=folder, capture_output=True, text=True)
    if fetched.returncode != 0:
        pytest.skip(f"apt cannot fetch {PACKAGE}: {fetched.stderr.strip()[-200:]}")
    (package,) = folder.glob(f"{PACKAGE}_*.deb")
    subprocess.run(["dpkg", "-x", str(package), str(folder / "root")], check=True)
    return program


@contextmanager
def registry(folder: Path, address: str) -> Iterator[Registry]:
    """A registry that boxes reach at an address of this machine, without TLS."""
    program, config = _program(), folder / "registry.yml"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    storage = {"filesystem": {"rootdirectory": str(folder / "registry")}}
    http = {"addr": f"127.0.0.1:{port}"}
    config.write_text(json.dumps({"version": 0.1, "log": {"level": "error"}, "storage": storage, "http": http}))
    with open(folder / "registry.log", "w") as log:
        server = subprocess.Popen([str(program), "serve", str(config)], stdout=log, stderr=log)
    door = Door()
    try:
        _answers(port, folder / "registry.log")
        with _doorway(address, port, door) as outer:
            yield Registry(f"{address}:{outer}", door, f"http://127.0.0.1:{port}")
    finally:
        door.open()
        server.terminate()
        server.wait(PATIENCE)


def _answers(port: int, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"http://127.0.0.1:{port}/v2/", trust_env=False).status_code == 200:
                return
        time.sleep(0.05)
    raise AssertionError(f"the registry does not answer: {log.read_text()[-1000:]}")


@contextmanager
def _doorway(address: str, port: int, door: Door) -> Iterator[int]:
    """Connections to a port of the address are passed on to the registry; the port."""
    with socket.create_server((address, 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):  # closed
                while True:
                    client, _ = listener.accept()
                    server = socket.create_connection(("127.0.0.1", port))
                    threading.Thread(target=_pass_on, args=(client, server, None), daemon=True).start()
                    threading.Thread(target=_pass_on, args=(server, client, door), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield int(listener.getsockname()[1])


def _pass_on(source: socket.socket, target: socket.socket, door: Door | None) -> None:
    passed = 0
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            passed += len(data)
            while door is not None and door.most is not None and passed > door.most:
                door.held.set()
                time.sleep(0.02)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
