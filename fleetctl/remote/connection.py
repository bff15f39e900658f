"""One box, connected: ops by name, commands, tunnels."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleetctl.errors import BoxError
from fleetctl.remote.errors import ConnectionLost, OpFailed
from fleetctl.spec.fleet import Box

if TYPE_CHECKING:
    from fleetctl.remote.link import Link
    from fleetctl.remote.session import Session
    from fleetctl.remote.tunnel import Reach

__all__ = ["BoxConnection", "ConnectionLost", "OpFailed", "Ran", "connect"]

Call = Callable[[str, dict[str, Any], float | None], Any]
"""An op, its arguments, and the seconds to wait for its answer; returns the result."""

UNIX = "unix:"
ANSWER_MARGIN = 30.0  # seconds beyond a command's own time limit before its answer is given up


@dataclass(frozen=True)
class Ran:
    """A command that ran to its end: exit status (negative for a signal) and both outputs."""

    rc: int
    out: str
    err: str


class BoxConnection:
    """A connection to one box with fleetctl's program at its end, running as root. Safe to use from any thread."""

    def __init__(self, name: str, open_session: Callable[[], tuple[Link, Session]]) -> None:
        self.name = name
        self._open = open_session
        self._renewing = threading.Lock()
        self._link, self._session = open_session()

    def call(
        self,
        op: str,
        /,
        *,
        timeout: float | None = None,
        on_event: Callable[[dict[str, Any]], None] | None = None,
        **args: Any,
    ) -> Any:
        """Run an op of ``fleetctl/onbox`` and return its result.

        ``timeout`` (seconds) is how long to wait for the answer, None for as long as it takes; it and ``on_event`` are
        the client's own. An op with an argument of one of these names takes it through :meth:`call_with`.
        Raises OpFailed when the op failed, ConnectionLost when the connection is gone.
        """
        return self._session.call(op, args, timeout, on_event)

    def call_with(
        self,
        op: str,
        args: dict[str, Any],
        *,
        timeout: float | None = None,
        on_event: Callable[[dict[str, Any]], None] | None = None,
    ) -> Any:
        """As :meth:`call`, with the op's arguments as a dict."""
        return self._session.call(op, args, timeout, on_event)

    def run(
        self,
        *argv: str,
        stdin: str = "",
        timeout: float = 60,
        check: bool = True,
        env: dict[str, str] | None = None,
    ) -> Ran:
        """Run a command as root, without a shell, and return its end.

        It is killed after ``timeout`` seconds. Raises OpFailed then, when there is no such program, and, with
        ``check``, when its exit status is not 0.
        """
        args = {"argv": list(argv), "stdin": stdin, "timeout": timeout, "env": env or {}}
        done = self.call_with("run", args, timeout=timeout + ANSWER_MARGIN)
        ran = Ran(done["rc"], done["out"], done["err"])
        if check and ran.rc != 0:
            said = (ran.err.strip() or ran.out.strip())[-1000:]
            message = f"{' '.join(argv)} ended with status {ran.rc}" + (f": {said}" if said else "")
            raise OpFailed(self.name, "run", "OpError", message)
        return ran

    @contextmanager
    def tunnel(self, host: str, port: int) -> Iterator[Path]:
        """A Unix socket of this machine that leads to ``host:port`` as seen from the box, for as long as the block.

        A host ``unix:PATH`` is a Unix socket of the box, which root alone may be allowed to open; it has no port.
        """
        from fleetctl.remote.tunnel import port_of, tunnel

        def reach_port(to: str, port: int) -> Reach:
            return port_of(self._link.transport, to, port)

        if not host.startswith(UNIX):
            with tunnel(self.name, reach_port(host, port), f"{host} port {port}") as path:
                yield path
            return
        from fleetctl.remote.sockets import way_to

        goal = host.removeprefix(UNIX)
        with way_to(self.name, self.call, reach_port, goal) as reach, tunnel(self.name, reach, goal) as path:
            yield path

    def cancel(self, ops: Collection[str] | None = None) -> None:
        """Cancel the calls under way on this connection, of the ops named only or of all.

        Each ends with OpFailed of the kind ``Cancelled`` once its op has noticed.
        """
        self._session.cancel(ops)

    def reconnect(self, first: Callable[[Call], None] = lambda call: None) -> None:
        """Replace a lost connection with a new one and a new program. Raises BoxError; can be tried again then.

        Nothing happens while the connection is good: of several threads that lost it, the first renews it for all.
        ``first`` calls ops on the new program (as :meth:`call_with`) before any other thread can; what it raises ends
        the new connection.
        """
        with self._renewing:
            if not self._session.lost:
                return
            self._session.close()
            link, session = self._open()
            try:
                first(lambda op, args, timeout: session.call(op, args, timeout, None))
            except BaseException:
                session.close()
                raise
            self._link, self._session = link, session

    def prove_reachable(self) -> None:
        """Connect once more, up to a program that answers, and end that connection. Raises BoxError when it fails.

        That this connection is good says nothing about new ones.
        """
        _, session = self._open()
        try:
            session.call("ping", {}, ANSWER_MARGIN, None)
        finally:
            session.close()

    def close(self) -> None:
        """End the program on the box and the connection."""
        self._session.close()

    def __enter__(self) -> BoxConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(
    name: str,
    box: Box,
    *,
    ask_password: Callable[[str], str] | None = None,
    ask_passphrase: Callable[[Path], str] | None = None,
    accept_new: bool = False,
    timeout: float = 10,
    reach: float | None = None,
    config: Path | None = None,
    ask_login: Callable[[str], str] | None = None,
    confirm_host: Callable[[str], str] | None = None,
    full: bool = False,
) -> BoxConnection:
    """Connect to a box of fleet.yaml, verify its host key, log in and start the program there as root.

    ``ask_password`` is given the box's name when its sudo wants a password that fleet.yaml has no reference for; it is
    asked once, and the answer kept for reconnects. ``ask_passphrase`` is given the path of a key that has one.
    ``accept_new`` adds the key of an unknown host to known_hosts; a changed one is refused all the same. ``timeout``
    are seconds for each stage: reaching the box, logging in, starting; with ``reach`` the first one has less.
    ``config`` stands in for ~/.ssh/config. ``ask_login`` is given USER@HOST when the box takes none of the keys and
    would take a password. ``confirm_host`` is given the question whether the key of an unknown host is right, and
    answers ``yes``. ``full``: the program may do more than what moves take.
    Raises BoxError.
    """

    @functools.cache
    def password() -> str:
        if box.ssh.sudo_password is not None:
            return box.ssh.sudo_password.read()
        if ask_password is None:
            raise BoxError(
                name,
                f"sudo wants a password for {box.ssh.user or 'the login user'}, and there is nobody to ask",
                hint="this is more than the sudo that setup gives: set ssh.sudo_password, or log in as another user"
                if full
                else "set ssh.sudo_password in fleet.yaml, or allow what it takes without a password: fleetctl setup",
            )
        return ask_password(name)

    passphrase = functools.cache(ask_passphrase) if ask_passphrase is not None else None
    login = functools.cache(ask_login) if ask_login is not None else None

    def open_session() -> tuple[Link, Session]:
        from fleetctl.remote import program
        from fleetctl.remote.link import Ways, open_link
        from fleetctl.remote.session import Session
        from fleetctl.remote.target import resolve

        target = resolve(name, box.ssh.host or box.address, box.ssh, config=config)
        link = open_link(name, target, Ways(config, accept_new, timeout, reach, passphrase, login, confirm_host))
        try:
            running = program.start(name, link.transport, target.user, password, timeout, full=full)
            return link, Session(name, running, link.close)
        except BaseException:
            link.close()
            raise

    return BoxConnection(name, open_session)
