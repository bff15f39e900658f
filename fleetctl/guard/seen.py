"""What the guard sees in one second, and how it is set up, as plain values."""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

Counters = Tuple[Tuple[str, float], ...]


class Memory(NamedTuple):
    """Memory of the box in bytes. ``pressure`` is the share of the last 10 s in which all tasks stood still for want of
    memory, in percent (PSI's full avg10); None: this kernel does not say."""

    total: int
    available: int
    swap_total: int = 0
    swap_free: int = 0
    pressure: Optional[float] = None


class Answer(NamedTuple):
    """What became of a completion that the guard asked for. ``asked`` is when, in seconds since boot."""

    asked: float
    well: bool
    silent: bool
    """Nothing came until the time ran out: worse than an error, which comes at once."""
    said: str


class Engine(NamedTuple):
    """One engine process of the current layout on this box, as it looks now."""

    unit: str
    active: str
    """ActiveState of systemd; empty: systemd did not say."""
    run: str = ""
    """InvocationID of the unit: another one is another process."""
    answers: bool = True
    """It is the head, which has a port and a server in the proxy. Followers of a split have neither."""
    most: int = 0
    """The share of memory that it was given, in bytes; 0: not known."""
    running: int = 0
    waiting: int = 0
    open: int = 0
    """Connections that the proxies have open to it: requests, whatever the engine says itself."""
    counters: Optional[Counters] = None
    """All that moves while the engine works; None: /metrics did not answer lately."""
    answer: Optional[Answer] = None
    """The last completion that was asked for."""
    told: int = 0
    """How often whoever asks was told that this engine is out, since it is: the proxies, or the guard of the head."""


class Lodger(NamedTuple):
    """One engine of the pool. ``phase`` and ``pinned`` are what the worker says; ``most`` of the engine is its
    ``memory:``."""

    engine: Engine
    phase: str = ""
    pinned: bool = False


class Pool(NamedTuple):
    """The pool of the box. ``memory``: bytes of all its engines; ``silent``: no worker answers."""

    memory: int
    lodgers: Tuple[Lodger, ...]
    silent: bool = False


class Look(NamedTuple):
    """One second. ``now`` counts from boot, also while the box sleeps. ``held``: why nothing may be done."""

    now: float
    memory: Memory
    engines: Tuple[Engine, ...] = ()
    held: str = ""
    pool: Optional[Pool] = None
    """None: the current layout has none here."""


class Action(NamedTuple):
    """What is to be done: note, ask, kill_and_restart, stop, kill or start, and why."""

    kind: str
    unit: str
    why: str


class Settings(NamedTuple):
    """How the guard is set up, from fleet.yaml. Sizes are bytes, times seconds."""

    box: str
    address: str
    port: int
    proxies: Tuple[str, ...]
    others: Dict[str, str]
    """The other boxes of the fleet and their addresses: an engine may have ranks there."""
    act: str
    memory_low: int
    pressure: float
    silent: float
    answer_within: float
    idle: float
    restarts: int

    @property
    def memory_high(self) -> int:
        """From here on there is enough again."""
        return 2 * self.memory_low

    @property
    def memory_hard(self) -> int:
        """From here on nothing is waited for."""
        return self.memory_low // 2


def settings_from(document: Dict[str, Any]) -> Settings:
    """The settings in a JSON object. Raises KeyError, TypeError or ValueError for what is no settings file."""
    values = {name: document[name] for name in Settings._fields}
    proxies: List[str] = [str(address) for address in values["proxies"]]
    return Settings(**dict(values, proxies=tuple(proxies)))
