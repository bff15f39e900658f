"""What a step is: the only thing that changes a box."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from fleetctl.errors import BoxError, FleetError, StepError
from fleetctl.plan.types import Plan, PlannedStep
from fleetctl.remote.boxes import Boxes
from fleetctl.remote.connection import BoxConnection
from fleetctl.remote.errors import OpFailed
from fleetctl.render.release import Engine, File, ProxyConfig

Record = dict[str, Any]
"""JSON that goes to the journal."""


@dataclass(frozen=True)
class Context:
    """What steps work with. ``fill`` resolves the secrets in a file; ``say`` reports progress of a step.

    ``stopped``: whether the move is going to be undone, so that what takes long here can end early.
    """

    plan: Plan
    boxes: Boxes
    fill: Callable[[File], str]
    say: Callable[[PlannedStep, Record], None]
    stopped: Callable[[], bool] = lambda: False

    def box(self, step: PlannedStep) -> BoxConnection:
        """Connection to the box that the step acts on."""
        return self.boxes[step.box]

    def progress(self, step: PlannedStep) -> Callable[[Record], None]:
        """A callback for events of a long wait."""
        return lambda event: self.say(step, event)

    def engine(self, step: PlannedStep) -> Engine:
        """The engine of the target release that the step is about."""
        return self.plan.release.any_engine(step.params["engine"])

    @property
    def proxy(self) -> ProxyConfig:
        """The proxy of the move: the target's, or where it has none the source's."""
        proxy = self.plan.release.proxy or self.plan.source.proxy
        assert proxy is not None
        return proxy

    def generation_files(self, number: int) -> str:
        """Folder on a box under which a generation keeps its files."""
        return f"/etc/fleetctl/generations/{number}/files"


class Step:
    """One kind of step. Every method may be called again after a cut: all are safe to repeat."""

    kind: ClassVar[str]
    once: ClassVar[bool] = False
    """Not repeated when a cut-off move is finished: it looks at the fleet as it was before the move."""

    once_a_turn: ClassVar[bool] = False
    """Not repeated either when the turn of its engine is over: that engine serves."""

    def check(self, context: Context, step: PlannedStep) -> bool:
        """Already so? Then it is not done again."""
        return False

    def prior(self, context: Context, step: PlannedStep) -> Record:
        """What ``undo`` needs to know, read before anything is done."""
        return {}

    def do(self, context: Context, step: PlannedStep) -> Record:
        """Do it, verify the effect, and return what was seen. Raises FleetError when the effect is not there."""
        raise NotImplementedError

    def undo(self, context: Context, step: PlannedStep, prior: Record) -> Record:
        """Take it back. Called only when ``do`` was begun."""
        return {}


KINDS: dict[str, Step] = {}
"""Step kinds by name; modules of this package add theirs."""


def register(cls: type[Step]) -> type[Step]:
    """Class decorator that makes a step kind known to the executor."""
    KINDS[cls.kind] = cls()
    return cls


def log_of(context: Context, box: str, unit: str, lines: int = 12) -> str:
    """The last lines that a unit logged, ready to be shown."""
    try:
        log = context.boxes[box].call("logs", unit=unit, lines=lines)
    except BoxError:
        return f"the log of {unit} on {box} cannot be read"
    return "\n".join([f"last lines of {unit} on {box}:", *(f"    {line}" for line in log)])


def with_log(context: Context, box: str, unit: str, failure: OpFailed) -> FleetError:
    """The failure of an engine together with the last lines of its log. A cancelled wait stays what it is."""
    if failure.kind == "Cancelled":
        return failure
    return StepError(str(failure), hint=log_of(context, box, unit))
