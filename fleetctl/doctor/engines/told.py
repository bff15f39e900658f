"""What a box told of its engines. Field meanings are those of ``fleetctl/onbox/examine_engines.py``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fleetctl.facts.types import Seen
from fleetctl.render.release import Engine, Rank
from fleetctl.spec.fleet import Fleet, PerBox
from fleetctl.spec.fleet_model import Model


class Lines(Seen):
    """Lines of one kind: how many, the first and the last (epoch seconds), and the newest of them, newest first."""

    count: int
    first: float
    last: float
    lines: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.count > 0


NONE = Lines(count=0, first=0.0, last=0.0)


class Rate(Seen):
    """A throughput line."""

    at: float
    prompt: float
    generation: float
    running: int
    waiting: int


class ToolAnswer(Seen):
    """What became of a question with a tool: its status, whether the tool was called, what the answer said instead.

    ``refused``: the engine said that it takes no tools.
    """

    status: int
    refused: bool = False
    called: bool = False
    text: str = ""


class EngineTold(Seen):
    """One unit. ``looks`` are its counters, twice; ``drafts`` are tokens accepted and drafted by its log."""

    active: str
    sub: str = ""
    result: str = ""
    restarts: int = 0
    began: float | None = None
    now: float = 0.0
    found: dict[str, Lines] = {}
    rates: tuple[tuple[float, float, float, int, int], ...] = ()
    drafts: tuple[int, int] = (0, 0)
    aborted: tuple[float, str] | None = None
    silent: int = 0
    progress: tuple[float, str] | None = None
    looks: tuple[dict[str, float], ...] = ()
    tool: ToolAnswer | None = None

    @property
    def runs(self) -> bool:
        """It serves, as far as systemd knows."""
        return self.active == "active"

    def throughput(self) -> Iterator[Rate]:
        """The throughput lines, the newest first."""
        for at, prompt, generation, running, waiting in self.rates:
            yield Rate(at=at, prompt=prompt, generation=generation, running=running, waiting=waiting)

    def lines(self, kind: str) -> Lines:
        """Lines of a kind, as ``WORDS`` of the op names them."""
        return self.found.get(kind, NONE)


class EnginesTold(Seen):
    """Unit → what it says."""

    engines: dict[str, EngineTold] = {}


@dataclass(frozen=True)
class Case:
    """One rank of an engine of the live layout, and what its unit told.

    ``taken`` are ports of the head's box that something else has now: who it is, the family *processes* says.
    """

    fleet: Fleet
    layout: str
    engine: Engine
    rank: Rank
    told: EngineTold
    taken: frozenset[int] = frozenset()

    @property
    def box(self) -> str:
        return self.rank.box

    @property
    def unit(self) -> str:
        return self.rank.unit

    @property
    def model(self) -> Model | None:
        """The model as fleet.yaml has it now; None: it is not there any more."""
        return self.fleet.models.get(self.engine.model)

    def argument(self, flag: str) -> str | None:
        """Value of a flag that fleet.yaml gives this engine: see :func:`argument`."""
        return argument(self.fleet, self.layout, self.engine.model, self.box, flag)

    def write(self, *words: str) -> str:
        """What to write into fleet.yaml to give the engine more arguments, and how it gets there."""
        listed = ", ".join(f'"{word}"' for word in words)
        return f"add to fleet.yaml: models: {{{self.engine.model}: {{arguments: [{listed}]}}}}, then `fleetctl apply`"

    def write_environment(self, name: str, value: str) -> str:
        """The same for a variable."""
        where = f"models: {{{self.engine.model}: {{environment: {{{name}: {value}}}}}}}"
        return f"add to fleet.yaml: {where}, then `fleetctl apply`"

    @property
    def restart(self) -> str:
        """The command that starts the engine anew."""
        return f"`fleetctl restart {self.engine.model if self.engine.kind == 'split' else self.box}`"


def argument(fleet: Fleet, layout: str, model: str, box: str, flag: str) -> str | None:
    """Value of a flag in the arguments of fleet.yaml; empty for one without a value, None where it is not."""
    found = None
    for layer in _layers(fleet, layout, model, box):
        for index, word in enumerate(layer):
            name, given, value = word.partition("=")
            if name.replace("_", "-") == flag:
                after = layer[index + 1] if index + 1 < len(layer) else ""
                found = value if given else "" if after.startswith("-") else after
    return found


def _layers(fleet: Fleet, layout: str, model: str, box: str) -> Iterator[tuple[str, ...]]:
    if model in fleet.models:
        yield fleet.models[model].arguments
    placement = fleet.layouts.get(layout, {}).get(model)
    if placement is not None:
        yield placement.arguments
        yield placement.boxes.get(box, PerBox()).arguments
