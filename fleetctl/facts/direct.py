"""What one box told of connections to engines' own ports. Field meanings are those of ``onbox/examine_clients.py``."""

from __future__ import annotations

from fleetctl.facts.types import Seen


class Caller(Seen):
    """A process of a box that has a connection open. ``command`` is its program, and its script."""

    pid: int
    comm: str
    unit: str | None = None
    command: str = ""

    def __str__(self) -> str:
        unit = f", {self.unit}" if self.unit else ""
        return f"{self.command or self.comm} (pid {self.pid}{unit})"


class Connection(Seen):
    """One connection to an engine's own port, seen from ``first`` to ``last`` (epoch seconds), perhaps ``open`` still.

    ``incoming``: it was seen on the engine's box, and ``remote`` is the client's end. Otherwise ``remote`` is the
    engine's end, and ``process`` has it open. Sizes are bytes as ``local`` counts them; None: not told.
    """

    local: tuple[str, int]
    remote: tuple[str, int]
    incoming: bool
    first: float
    last: float
    open: bool
    process: Caller | None = None
    sent: int | None = None
    received: int | None = None

    @property
    def client(self) -> tuple[str, int]:
        """The client's end."""
        return self.remote if self.incoming else self.local

    @property
    def engine(self) -> tuple[str, int]:
        """The engine's end."""
        return self.local if self.incoming else self.remote

    @property
    def up(self) -> int | None:
        """Bytes that the client sent."""
        return self.received if self.incoming else self.sent

    @property
    def down(self) -> int | None:
        """Bytes that the client got."""
        return self.sent if self.incoming else self.received


class Requests(Seen):
    """Requests of one address by an engine's log. ``worked`` is when the last one came that was work."""

    work: int = 0
    reads: int = 0
    other: int = 0
    last: float = 0.0
    worked: float | None = None

    def and_(self, more: Requests) -> Requests:
        """These and more."""
        worked = [at for at in (self.worked, more.worked) if at is not None]
        return Requests(
            work=self.work + more.work,
            reads=self.reads + more.reads,
            other=self.other + more.other,
            last=max(self.last, more.last),
            worked=max(worked, default=None),
        )


class Log(Seen):
    """The access log of one engine. ``connections`` (``ADDRESS PORT``) says of some what was asked over them."""

    lines: int = 0
    oldest: float | None = None
    clients: dict[str, Requests] = {}
    connections: dict[str, str] = {}
    complete: bool = True
    why: str | None = None

    def and_(self, more: Log) -> Log:
        """This and what was written after it."""
        later = {address: self.clients.get(address, Requests()).and_(told) for address, told in more.clients.items()}
        return self.model_copy(
            update={
                "lines": self.lines + more.lines,
                "clients": {**self.clients, **later},
                "connections": {**self.connections, **more.connections},
            }
        )


class Setting(Seen):
    """A line that names an engine's own address. ``near``: its port is in another line nearby."""

    path: str
    line: int
    address: str
    engine: str
    near: bool = False


class ClientsTold(Seen):
    """What one box told. ``listens`` are the addresses on which its engines listen, by port."""

    began: float = 0.0
    looks: int = 0
    seen: tuple[Connection, ...] = ()
    more: int = 0
    asked: dict[int, Log] = {}
    listens: dict[int, tuple[str, ...]] = {}
    settings: tuple[Setting, ...] = ()
