"""The way to a server: TCP, a jump host's channel or a ProxyCommand, then key exchange, host key and login."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fleetctl.errors import BoxError
from fleetctl.remote import hostkey
from fleetctl.remote.auth import AskPassphrase, authenticate
from fleetctl.remote.library import paramiko
from fleetctl.remote.target import Target, jump, resolve

MAX_JUMPS = 8
_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # Linux has it

# Fast first: on a small machine the exchange is a good part of a command's time.
_KEX = ("curve25519-sha256@libssh.org", "curve25519-sha256", "mlkem768x25519-sha256")


@dataclass(frozen=True)
class Ways:
    """How the operator wants connections to be made."""

    config: Path | None = None
    accept_new: bool = False
    timeout: float = 10.0
    reach: float | None = None
    """Seconds to wait for a server at all, where that is less than ``timeout``."""
    ask_passphrase: AskPassphrase | None = None
    ask_login: Callable[[str], str] | None = None
    """Asks for the password of ``USER@HOST`` where no key is taken."""
    confirm_host: Callable[[str], str] | None = None
    """Asks whether the key of an unknown host is right; ``yes`` has it kept."""


@dataclass
class Link:
    """An authenticated transport and how to end it and what it runs over, in this order."""

    transport: paramiko.Transport
    below: list[Callable[[], None]]

    def close(self) -> None:
        """End it at once; whatever still waits on it gets an error."""
        _end_all(self.below)


def _end_all(ends: list[Callable[[], None]]) -> None:
    for end in ends:
        with contextlib.suppress(OSError, EOFError):
            end()


def open_link(box: str, target: Target, ways: Ways, *, depth: int = 0) -> Link:
    """Connect, verify the host key and log in. Raises BoxError."""
    limit = target.connect_timeout or ways.timeout  # ConnectTimeout is there for those whose way is long
    below: list[Callable[[], None]] = []
    try:
        transport = _transport(box, target, ways, limit, below, depth)
        authenticate(box, transport, target, ways.ask_passphrase, ways.ask_login)
    except BaseException:
        _end_all(below)
        raise
    return Link(transport, below)


def _transport(
    box: str, target: Target, ways: Ways, limit: float, below: list[Callable[[], None]], depth: int
) -> paramiko.Transport:
    way: socket.socket | paramiko.Channel
    if target.proxy_command is not None:
        way = _command(box, target.proxy_command, below)
    elif target.proxy_jump:
        way = _through(box, target, ways, limit, below, depth)
    else:
        way = _tcp(box, target, target.connect_timeout or min(limit, ways.reach or limit))
        below.append(lambda: _shut(way))
    transport = paramiko.Transport(way)
    below.append(transport.close)
    transport.auth_timeout = limit
    transport.banner_timeout = transport.handshake_timeout = 2 * limit  # ours, below, is over first and says more
    options = transport.get_security_options()
    options.kex = [name for name in _KEX if name in options.kex] + [n for n in options.kex if n not in _KEX]
    options.key_types = hostkey.preferred(target, list(options.key_types))
    try:
        transport.start_client(timeout=limit)
        if not transport.initial_kex_done:  # paramiko returns as if all was well when the time is up
            raise TimeoutError(f"no greeting within {limit:g} s")
        key = transport.get_remote_server_key()
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise BoxError(
            box, f"no SSH conversation with {target.where()}: {error or 'the connection was closed'}"
        ) from error
    accept = ways.accept_new or target.accept_new
    hostkey.verify(box, target, key.get_name(), key.asbytes(), accept_new=accept, confirm=ways.confirm_host)
    return transport


def _shut(way: socket.socket | paramiko.Channel) -> None:
    """Wake whoever reads: paramiko's thread looks up only every tenth of a second otherwise."""
    way.shutdown(socket.SHUT_RDWR)


class _PromptSocket(socket.socket):
    """A TCP socket that acknowledges at once.

    Between login and session sshd sends several small packets, each of which Nagle's algorithm holds back until the
    one before is acknowledged; the kernel would take its 40 ms for that, which is a third of a whole connection.
    """

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        data = super().recv(size, flags)
        if _QUICKACK is not None:
            with contextlib.suppress(OSError):
                self.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
        return data


def _tcp(box: str, target: Target, limit: float) -> socket.socket:
    where = f"{target.host} port {target.port}"
    try:
        found = socket.getaddrinfo(target.host, target.port, target.family, socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise BoxError(
            box,
            f"no address for {target.host}: {error.strerror}",
            hint="is the name spelt right? In fleet.yaml it is ssh.host, or address, of the box",
        ) from error
    end = time.monotonic() + limit
    problem: OSError = TimeoutError()
    for family, kind, protocol, _, address in found:
        way = _PromptSocket(family, kind, protocol)
        try:
            way.settimeout(max(0.05, end - time.monotonic()))
            if target.bind is not None:
                way.bind((target.bind, 0))
            way.connect(address)
            way.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return way
        except OSError as error:
            way.close()
            problem = error
    if isinstance(problem, TimeoutError):
        raise BoxError(
            box, f"no answer from {where} within {limit:g} s", hint="is the box on, and the address right?"
        ) from problem
    if isinstance(problem, ConnectionRefusedError):
        raise BoxError(box, f"nothing listens for SSH at {where}", hint="is sshd running there?") from problem
    raise BoxError(box, f"cannot reach {where}: {problem.strerror or problem}") from problem


def _through(
    box: str, target: Target, ways: Ways, limit: float, below: list[Callable[[], None]], depth: int
) -> paramiko.Channel:
    """A channel to the target from the last of its jump hosts, each of which is verified like any server."""
    if depth >= MAX_JUMPS:
        raise BoxError(
            box,
            f"more than {MAX_JUMPS} jump hosts on the way to {target.host}: does ProxyJump go in a circle?",
        )
    *before, last = target.proxy_jump
    host, ssh = jump(last)
    hop = resolve(box, host, ssh, config=ways.config)
    if before:  # as with ssh -J: the hops named before replace what the configuration says for this one
        hop = hop.through(tuple(before))
    link = open_link(box, hop, ways, depth=depth + 1)
    below.append(link.close)
    try:
        return link.transport.open_channel("direct-tcpip", (target.host, target.port), ("127.0.0.1", 0), timeout=limit)
    except (paramiko.SSHException, EOFError, OSError) as error:
        reason = getattr(error, "text", "") or str(error)
        raise BoxError(
            box, f"{hop.where()} (jump host) cannot reach {target.host} port {target.port}: {reason}"
        ) from error


def _command(box: str, command: str, below: list[Callable[[], None]]) -> socket.socket:
    ours, theirs = socket.socketpair()
    try:
        process = subprocess.Popen(["/bin/sh", "-c", f"exec {command}"], stdin=theirs.fileno(), stdout=theirs.fileno())
    except OSError as error:
        ours.close()
        raise BoxError(box, f"cannot start ProxyCommand {command}: {error.strerror}") from error
    finally:
        theirs.close()

    def end() -> None:
        ours.close()
        process.kill()
        process.wait()

    below.append(lambda: _shut(ours))
    below.append(end)
    return ours
