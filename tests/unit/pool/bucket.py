"""A real store that speaks S3 for tests: OpenStack Swift with its S3 interface, one for all tests of a process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from natsserver import free_port

from fleetctl.pool import wire

needs_s3 = pytest.mark.skipif(
    find_spec("swift") is None or find_spec("obstore") is None, reason="swift and obstore are not installed"
)
USER, SECRET, BUCKET = "pool", "not-to-be-seen", "bodies"


@dataclass(frozen=True)
class Storage:
    """A server with one bucket, and what reaches it."""

    folder: Path
    endpoint: str
    access: wire.S3Access

    def refusing(self, **changes: str) -> wire.S3Access:
        """The same access, with another bucket, endpoint or secret key (``secret``)."""
        secret = changes.pop("secret", None)
        if secret is not None:
            changes["secret_key_file"] = str(_file(self.folder / "other-secret", secret))
        return replace(self.access, **changes)

    def names(self) -> list[str]:
        """What is in the bucket, in order."""
        return sorted(one["path"] for page in self.raw().list() for one in page)

    def parts(self) -> int:
        """Files that Swift keeps: parts of uploads included, which no list of the bucket has."""
        return sum(1 for _ in (self.folder / "devices").rglob("*.data"))

    def raw(self) -> Any:
        """The bucket without a prefix."""
        from obstore.store import S3Store

        return S3Store(
            BUCKET,
            endpoint=self.endpoint,
            region="us-east-1",
            access_key_id=f"test:{USER}",
            secret_access_key=SECRET,
            client_options={"allow_http": True, "timeout": timedelta(seconds=20)},
        )


@contextmanager
def storage(folder: Path) -> Iterator[Storage]:
    """A server for the length of a with block."""
    port = free_port()
    argv = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("swift_server.py")), str(folder), str(port)]
    folder.mkdir()
    with (folder / "swift.log").open("wb") as log:
        process = subprocess.Popen([*argv, USER, SECRET, BUCKET], stdout=subprocess.PIPE, stderr=log)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n", (folder / "swift.log").read_text()
        endpoint = f"http://127.0.0.1:{port}"
        key, secret = _file(folder / "key", f"test:{USER}"), _file(folder / "secret", SECRET)
        yield Storage(folder, endpoint, wire.S3Access(BUCKET, "fleet/a", endpoint, "us-east-1", str(key), str(secret)))
    finally:
        process.kill()
        process.wait(20)


def _file(path: Path, text: str) -> Path:
    path.write_text(text + "\n")
    return path


async def until(holds: Any, seconds: float = 20.0) -> None:
    """Waits until something holds."""
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.02)
