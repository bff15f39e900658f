"""An sshd of the tests' own on loopback, with keys and known_hosts to go with it."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from fleetctl.remote.connection import BoxConnection, connect
from fleetctl.spec.fleet import Box

SSHD = shutil.which("sshd") or shutil.which("/usr/sbin/sshd")

needs_sshd = pytest.mark.skipif(
    os.geteuid() != 0 or SSHD is None, reason="needs root and an installed sshd, which it starts on loopback"
)


def make_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", str(path)], check=True)
    return path


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Sshd:
    """A running sshd; ``extra`` are further lines of its configuration."""

    def __init__(self, folder: Path, *extra: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self.host_key = make_key(folder / "host")
        self.key = make_key(folder / "id")
        self.authorized = folder / "authorized_keys"
        self.authorized.write_text(Path(f"{self.key}.pub").read_text())
        self.known_hosts = folder / "known_hosts"
        kind, blob = Path(f"{self.host_key}.pub").read_text().split()[:2]
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {kind} {blob}\n")
        self.log = folder / "log"
        config = folder / "sshd_config"
        config.write_text(
            "\n".join(
                [
                    f"Port {self.port}",
                    "ListenAddress 127.0.0.1",
                    f"HostKey {self.host_key}",
                    "PidFile none",
                    f"AuthorizedKeysFile {self.authorized}",
                    "StrictModes no",
                    "UsePAM no",
                    "PermitRootLogin yes",
                    "PasswordAuthentication no",
                    "KbdInteractiveAuthentication no",
                    "PrintMotd no",
                    *extra,
                ]
            )
            + "\n"
        )
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self._process = subprocess.Popen([str(SSHD), "-D", "-f", str(config), "-E", str(self.log)])
        self._await_port()

    def _await_port(self) -> None:
        for _ in range(200):
            with socket.socket() as sock:
                if sock.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError(f"sshd did not start: {self.log.read_text()}")

    def box(self, **ssh: Any) -> Box:
        """The server as a box of fleet.yaml."""
        reach = {
            "user": getpass.getuser(),
            "port": self.port,
            "key": str(self.key),
            "known_hosts": str(self.known_hosts),
            **ssh,
        }
        return Box.model_validate(
            {
                "address": "127.0.0.1",
                "memory": "1GiB",
                "reserve": "0GiB",
                "ssh": {key: value for key, value in reach.items() if value is not None},
            }
        )

    def connect(self, **ssh: Any) -> BoxConnection:
        """A connection to the server as box ``spark1``."""
        return connect("spark1", self.box(**ssh))

    def sessions(self) -> list[psutil.Process]:
        """The processes that serve connections."""
        return [child for child in psutil.Process(self._process.pid).children() if child.is_running()]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(10)
        # sshd leaves its sessions to themselves; the tests have closed them by now


def alias_config(path: Path, sshd: Sshd, *blocks: str) -> Path:
    """An OpenSSH configuration in which ``Host *`` knows the server's key and known_hosts."""
    general = f"Host *\n  IdentityFile {sshd.key}\n  UserKnownHostsFile {sshd.known_hosts}\n"
    path.write_text("\n".join([*blocks, general]))
    return path
