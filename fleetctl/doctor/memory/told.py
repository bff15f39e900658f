"""What a box told of its memory, as values: the answer of the op ``examine_memory``. Sizes are bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fleetctl.doctor.nvidia import App, Gpu, Said, apps_of, gpus_of, shares_memory
from fleetctl.facts.types import Seen
from fleetctl.render.names import engine_unit


class Line(Seen):
    """A line of the journal; ``at`` is in epoch seconds by the clock of the box."""

    at: float
    text: str


class Lines(Seen):
    """How many lines there were, and the newest of them, newest first."""

    count: int = 0
    lines: tuple[Line, ...] = ()


class Journal(Seen):
    """What the journal of the last days has; ``why`` it is not all, None: it is."""

    no_memory: Lines = Lines()
    xid: Lines = Lines()
    killed: Lines = Lines()
    why: str | None = None


class EngineProcess(Seen):
    """A process of an engine: what it has that is no file, and what of it is in swap."""

    pid: int
    comm: str = ""
    unit: str | None = None
    engine: str = ""
    anonymous: int = 0
    shared: int = 0
    swap: int = 0


class Owner(Seen):
    """Whose a process is that holds memory of a GPU."""

    unit: str = ""
    comm: str = ""


class MemoryTold(Seen):
    """The answer. ``container``: the kernel's figures are those of the host, which has other boxes too.

    ``answered_at`` is by the operator's clock.
    """

    container: bool = False
    meminfo: dict[str, int] = {}
    swaps: str = ""
    swappiness: int | None = None
    pressure: str | None = None
    unified_groups: bool = True
    processes: tuple[EngineProcess, ...] = ()
    gpus: Said | None = None
    apps: Said | None = None
    owners: dict[int, Owner] = {}
    daemons: dict[str, tuple[str, ...]] = {}
    units: str = ""
    journal: Journal = Journal()
    refused: dict[str, Lines] = {}
    answered_at: float = 0.0

    def gpu_list(self) -> list[Gpu] | None:
        """GPUs; None where it is not known."""
        return gpus_of(self.gpus)

    def app_list(self) -> list[App] | None:
        """Processes with memory of a GPU; None where it is not known."""
        return apps_of(self.apps)

    @property
    def unified(self) -> bool:
        """The GPU shares the memory of the box."""
        return shares_memory(self.gpu_list())

    def unit(self, name: str) -> dict[str, str]:
        """Properties of a unit as systemctl shows them; none where they were not told."""
        for block in self.units.split("\n\n"):
            rows = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
            if rows.get("Id") == name:
                return rows
        return {}

    def size(self, name: str, row: str) -> int | None:
        """A size among a unit's properties; None where it is none, as with ``infinity``."""
        word = self.unit(name).get(row, "")
        return int(word) if word.isdecimal() and len(word) <= 19 else None


@dataclass(frozen=True)
class Held:
    """What the engine of a unit holds now: ``host`` in its processes, ``gpu`` by the driver's word."""

    unit: str
    host: int
    gpu: int
    swap: int
    pids: tuple[int, ...]

    @property
    def total(self) -> int:
        return self.host + self.gpu


def of_unit(process: EngineProcess, unit: str) -> bool:
    """A process is a unit's: in its control group, or in a container of it. Docker's have groups of their own."""
    layout, _, model = process.engine.partition("@")[0].partition("/")
    in_container = process.unit is not None and process.unit.endswith(".scope")
    return process.unit == unit or (in_container and unit == engine_unit(layout, model))


def held_by(told: MemoryTold, unit: str) -> Held | None:
    """What a unit's engine holds; None where it does not run, or the driver does not say what is the GPU's."""
    own = [process for process in told.processes if of_unit(process, unit)]
    if not own:
        return None
    pids = {process.pid for process in own}
    apps = told.app_list()
    if told.gpus is not None and apps is None:
        return None
    sizes = [app.used for app in apps or () if app.pid in pids]
    if any(size is None for size in sizes):
        return None
    # Shared memory is in every process that has it mapped: it counts once.
    host = sum(process.anonymous for process in own) + max(process.shared for process in own)
    swap = sum(process.swap for process in own)
    return Held(unit, host, sum(size or 0 for size in sizes), swap, tuple(sorted(pids)))


def strangers(told: MemoryTold) -> Iterator[tuple[App, Owner]]:
    """Processes with memory of a GPU that are no engines of fleetctl."""
    ours = {process.pid for process in told.processes}
    for app in told.app_list() or ():
        if app.pid not in ours:
            yield app, told.owners.get(app.pid, Owner())
