"""What a box told of its engines. Field meanings are those of ``fleetctl/onbox/examine_engines.py``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fleetctl.facts.types import Seen
from fleetctl.render.release import Engine, Rank
from fleetctl.spec.fleet import Fleet, Model, PerBox, Placement


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
    """One rank of an engine of the live layout, and what its unit told."""

    fleet: Fleet
    layout: str
    engine: Engine
    rank: Rank
    told: EngineTold

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

    @property
    def placement(self) -> Placement | None:
        return self.fleet.layouts.get(self.layout, {}).get(self.engine.model)

    def argument(self, flag: str) -> str | None:
        """Value of a flag that fleet.yaml gives this engine; empty for one without a value, None where it is not."""
        found = None
        for layer in self._layers():
            for index, word in enumerate(layer):
                name, given, value = word.partition("=")
                if name.replace("_", "-") == flag:
                    after = layer[index + 1] if index + 1 < len(layer) else ""
                    found = value if given else "" if after.startswith("-") else after
        return found

    def _layers(self) -> Iterator[tuple[str, ...]]:
        if self.model is not None:
            yield self.model.arguments
        if self.placement is not None:
            yield self.placement.arguments
            yield self.placement.boxes.get(self.box, PerBox()).arguments

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
