"""Load on a whole layout, through its proxy, and its figures kept on the box that keeps the journal."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fleetctl import __version__
from fleetctl.bench.mix import Mix
from fleetctl.bench.stored import Load, StoredRun, Wanted, figures_of, goal_of, load_of, read_runs
from fleetctl.bench.summary import Summary, Target
from fleetctl.bench.target import Bench
from fleetctl.errors import FleetError, RefusedError
from fleetctl.run.benching import Standing, standing, through_proxy
from fleetctl.run.journal import whoami
from fleetctl.run.subject import Subject

LIMIT = 30.0  # seconds that a box has for what it keeps


@dataclass(frozen=True)
class Wish:
    """The load that a layout is to get: ``clients`` at once or ``rate`` requests a second. Times are seconds."""

    model: str
    mix: Mix
    clients: int | None
    rate: float | None
    seed: int
    duration: float
    warm_up: float
    target: Target | None

    @property
    def load(self) -> Load:
        """As it is kept."""
        return load_of(self.model, self.mix, seed=self.seed, stream=True, clients=self.clients, rate=self.rate)

    @property
    def wanted(self) -> Wanted:
        """What a run that is kept has to be like to be one of this."""
        load = self.load
        return Wanted(
            model=self.model,
            mix=load.mix,
            digest=load.digest,
            seed=self.seed,
            clients=self.clients,
            rate=self.rate,
            target=goal_of(self.target),
        )


def measure(subject: Subject, wish: Wish, layout: str, say: Callable[[str], None]) -> StoredRun:
    """Send the load to the layout that is live, and keep what it measured.

    Raises RefusedError when that layout is not live, not all of its engines serve, or it changes meanwhile; LoadError
    when nothing is answered.
    """
    found = standing(subject, wish.model, wish.mix.task)
    if found.release.layout != layout:
        raise RefusedError(f"the fleet is in {found.release.layout} and not in {layout}: somebody has moved it")
    if found.out:
        raise RefusedError(
            f"{', '.join(found.out)} takes no requests: what {layout} can do is not to be seen now",
            hint="`fleetctl status` says why",
        )
    way = through_proxy(subject, found)
    say(f"{layout}, {way.told}")
    bench = Bench(way.endpoint, wish.mix, model=found.engines[0].served_as[0], seed=wish.seed, gauges=False)
    for note in bench.met.notes:
        say(note)
    if wish.rate is not None:
        measured = bench.open(wish.rate, warm_up=wish.warm_up, duration=wish.duration, target=wish.target)
    else:
        measured = bench.closed(wish.clients or 1, warm_up=wish.warm_up, duration=wish.duration, target=wish.target)
    return keep(subject, found, wish.load, measured.summary, wish.target, wish.warm_up)


def keep_load(
    subject: Subject,
    before: Standing,
    mix: Mix,
    served_as: str,
    how: dict[str, Any],
    summary: Summary,
    target: Target | None,
    warm_up: float,
) -> str:
    """Keep the load of a model that is ``served_as`` that; what came of it, in words. ``how``: see `load_of`."""
    model = next((engine.model for engine in before.release.all_engines if served_as in engine.served_as), None)
    if model is None:
        return f"not kept for `fleetctl compare`: no model of {before.release.layout} is served as {served_as}"
    try:
        run = keep(subject, before, load_of(model, mix, **how), summary, target, warm_up)
    except FleetError as error:
        return f"not kept for `fleetctl compare`: {error.message}"
    return f"kept for `fleetctl compare`, as a load of {run.layout}, generation {run.generation}"


def keep(
    subject: Subject, before: Standing, load: Load, summary: Summary, target: Target | None, warm_up: float
) -> StoredRun:
    """Keep a load that a layout got through its proxy. ``before`` is what was live when it began.

    Raises RefusedError when it says nothing of the layout as a whole, and BoxError when the box cannot be reached.
    """
    layout = before.release.layout
    if before.out:
        raise RefusedError(f"{', '.join(before.out)} took no requests")
    after = standing(subject, None, None)
    if (after.release.layout, after.generation) != (layout, before.generation):
        raise RefusedError(f"the fleet was moved meanwhile, from {layout} to {after.release.layout}")
    if after.out:
        raise RefusedError(f"{', '.join(after.out)} takes no requests any more")
    run = StoredRun(
        at=time.time(),
        who=whoami(),
        fleetctl=__version__,
        layout=layout or "",
        generation=before.generation,
        load=load,
        target=goal_of(target),
        duration=round(summary.seconds, 3),
        warm_up=warm_up,
        engines=digests(before, load.model),
        builds=dict(before.builds),
        figures=figures_of(summary),
    )
    lead = subject.fleet.proxy.lead
    if lead in subject.unreachable:
        raise subject.unreachable[lead]
    subject.boxes[lead].call("bench_note", record=run.model_dump(mode="json"), timeout=LIMIT)
    return run


def digests(found: Standing, model: str) -> dict[str, tuple[str, ...]]:
    """Engine of a model → the digests of its ranks, which change when its settings do."""
    engines = [engine for engine in found.release.all_engines if engine.model == model]
    return {engine.id: tuple(rank.digest[:12] for rank in engine.ranks) for engine in engines}


def kept_runs(subject: Subject) -> list[StoredRun]:
    """The loads that are kept, oldest first."""
    lead = subject.fleet.proxy.lead
    if lead in subject.unreachable:
        raise subject.unreachable[lead]
    return read_runs(subject.boxes[lead].call("benches", timeout=LIMIT))
