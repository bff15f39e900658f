"""A box that has no python3, and so cannot run fleetctl's program: python3 is installed there by its own apt."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from fleetctl.errors import BoxError
from fleetctl.remote.library import paramiko
from fleetctl.remote.link import Ways, open_link
from fleetctl.remote.target import resolve
from fleetctl.spec.fleet import Box

WORDS = "apt-get update; apt-get install --no-install-recommends python3"
"""What is done, as it is shown before."""

NO_APT = 95
LIMIT = 900.0  # seconds; a mirror may be slow
_INSTALL = "apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends python3"
_TAIL = 800  # characters of what apt said that are shown when it failed


def install_python(name: str, box: Box, ways: Ways, password: Callable[[], str]) -> None:
    """Install python3 over a connection of its own. ``password`` is asked for where sudo wants one. Raises BoxError."""
    target = resolve(name, box.ssh.host or box.address, box.ssh, config=ways.config)
    link = open_link(name, target, ways)
    try:
        sudo, secret = "", None
        if target.user != "root":
            asks = _run(name, link.transport, "sudo -n true", None)[0] != 0
            sudo, secret = ('sudo -S -p "" -- ', password()) if asks else ("sudo -n -- ", None)
        line = f'command -v apt-get >/dev/null || exit {NO_APT}; exec {sudo}sh -c "{_INSTALL}"'
        status, said = _run(name, link.transport, line, secret)
    finally:
        link.close()
    if status == NO_APT:
        raise BoxError(name, "there is no python3, and no apt to install it", hint="install python3 there by hand")
    if status != 0:
        raise BoxError(name, f"python3 could not be installed (status {status}): {said[-_TAIL:].strip()}")


def _run(name: str, transport: paramiko.Transport, line: str, secret: str | None) -> tuple[int, str]:
    """Run a line by sh, without quotes of the single kind in it; exit status, and what it said on both outputs."""
    end = time.monotonic() + LIMIT
    said = bytearray()
    try:
        channel = transport.open_session(timeout=30)
        channel.set_combine_stderr(True)
        channel.settimeout(1.0)
        channel.exec_command(f"/bin/sh -c 'LC_ALL=C; export LC_ALL; {line}'")
        if secret is not None:
            channel.sendall(f"{secret}\n".encode())
        channel.shutdown_write()
        while True:
            with contextlib.suppress(TimeoutError):
                data = channel.recv(65536)
                if not data:
                    break
                said += data
            if time.monotonic() > end:
                raise BoxError(name, f"python3 was not installed within {LIMIT:g} s; apt goes on there")
        return channel.recv_exit_status(), said.decode(errors="replace")
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise BoxError(name, f"the connection broke while python3 was installed: {error}") from error
