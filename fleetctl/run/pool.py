"""The pool as its workers tell it, box by box; and what an operator wishes of its models."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import ValidationError

from fleetctl.errors import RefusedError, SpecError, reason
from fleetctl.facts.seen import Seen, first_fault
from fleetctl.remote.connection import BoxConnection
from fleetctl.run.subject import Subject
from fleetctl.spec.problems import near_or_all

LIMIT = 30.0  # seconds that a box has for its answer
Wish = Literal["load", "evict", "pin", "unpin"]
NO_POOL = "bring a layout with pool: placements into the fleet with `fleetctl cutover`"


class PoolEngine(Seen):
    """One engine of a box, as its worker has it: bytes, and seconds since its last request (None: none yet).

    ``phase`` is a word of ``fleetctl/pool/residency.py``; ``reason`` says why the last load failed.
    """

    name: str
    phase: str
    pinned: bool = False
    wish: str | None = None
    memory: int = 0
    running: int = 0
    calls: int = 0
    load_seconds: float | None = None
    idle_seconds: float | None = None
    failures: int = 0
    reason: str = ""


class PoolModel(Seen):
    """A model on a box: requests that this box has taken and not begun, and its engines here."""

    local: int = 0
    engines: tuple[PoolEngine, ...] = ()


class PoolMemory(Seen):
    """Bytes that the engines of a box may take together, and take."""

    limit: int
    taken: int


class PoolWaiting(Seen):
    """What waits of a model in the queue of all boxes: requests, lines of batch jobs, seconds of the oldest request."""

    waiting: int
    batch: int = 0
    oldest: float | None = None


class PoolQueue(Seen):
    """The queue, as JetStream told the worker."""

    models: dict[str, PoolWaiting] = {}


class PoolWorker(Seen):
    """What a worker says of itself. ``queue``: None where it does not know what waits."""

    box: str
    connected: bool
    draining: bool = False
    memory: PoolMemory
    models: dict[str, PoolModel] = {}
    queue: PoolQueue | None = None


@dataclass
class PoolSeen:
    """Workers by box, boxes whose worker says nothing and why, boxes without one, and what is wrong."""

    workers: dict[str, PoolWorker] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)
    without: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """What is wrong, one sentence each."""
        found = [f"{box}: {why}" for box, why in self.silent.items()]
        for box, worker in self.workers.items():
            if not worker.connected:
                found.append(f"{box}: the worker has no connection to NATS: journalctl -u fleetctl-worker there")
            for model in worker.models.values():
                for engine in model.engines:
                    if engine.phase == "failed":
                        why = engine.reason or "no reason told"
                        found.append(f"{box}: {engine.name} could not be loaded, {engine.failures} times by now: {why}")
        return found

    def boxes_of(self, model: str) -> list[str]:
        """Boxes whose worker has a model, or an engine of that name."""
        return [
            box
            for box, worker in self.workers.items()
            if model in worker.models
            or any(model == engine.name for one in worker.models.values() for engine in one.engines)
        ]


def pool_seen(subject: Subject, only: Collection[str] = ()) -> PoolSeen:
    """Ask the workers, of all boxes or of some; those of boxes that cannot be reached are silent.

    Raises SpecError for a box that the fleet does not have, and RefusedError where no box that was asked has a worker.
    """
    for box in only:
        if box not in subject.fleet.boxes:
            raise SpecError(f"there is no box {box}", hint=near_or_all(box, subject.fleet.boxes))
    asked = [box for box in subject.fleet.boxes if not only or box in only]

    def ask(box: BoxConnection) -> Mapping[str, object] | None:
        return dict(box.call("pool_state", timeout=LIMIT)) if box.name in asked else None

    told = subject.boxes.each(ask)
    found = PoolSeen()
    for name in asked:
        answer = told.get(name)
        if name in subject.unreachable:
            found.silent[name] = f"it cannot be reached: {reason(name, subject.unreachable[name])}"
        elif answer is None or not answer["worker"]:
            found.without.append(name)
        elif answer["state"] is None:
            found.silent[name] = str(answer["why"])
        else:
            try:
                found.workers[name] = PoolWorker.model_validate(answer["state"])
            except ValidationError as error:
                found.silent[name] = f"its worker is of another version: {first_fault(error)}"
    if not found.workers and not found.silent:
        raise RefusedError(f"there is no worker of a pool on {', '.join(asked)}", hint=NO_POOL)
    return found


def wish(subject: Subject, model: str, what: Wish, only: Collection[str] = ()) -> dict[str, dict[str, object]]:
    """Tell the worker of every box that has the model, or of ``only`` those; what each answers.

    Raises SpecError where none has it, RefusedError where one does not answer (then none was told), and FleetError with
    what a worker refuses.
    """
    seen = pool_seen(subject, only)
    if seen.silent:
        raise RefusedError(
            "; ".join(f"{box}: {why}" for box, why in seen.silent.items()) + "; nothing was changed",
            hint="say --box for those that answer",
        )
    boxes = seen.boxes_of(model)
    if not boxes:
        known = sorted({name for worker in seen.workers.values() for name in worker.models})
        where = f" on {', '.join(seen.workers)}" if only else ""
        raise SpecError(f"the pool has no model {model}{where}", hint=near_or_all(model, known))

    def tell(box: BoxConnection) -> dict[str, object]:
        return dict(box.call("pool_wish", model=model, wish=what, timeout=LIMIT)) if box.name in boxes else {}

    told = subject.boxes.each(tell)
    return {box: told[box] for box in boxes}
