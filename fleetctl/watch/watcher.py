"""Reads the fleet, each engine directly on its own box, and sums up.

with Watcher(boxes, fleet) as watcher:
    while True:
        sample = watcher.sample()
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from fleetctl.errors import FleetError
from fleetctl.remote.connection import BoxConnection
from fleetctl.render.release import Engine, Release
from fleetctl.spec.fleet import Fleet
from fleetctl.watch.asking import MARGIN, Asked
from fleetctl.watch.follow import Followed
from fleetctl.watch.names import wanted
from fleetctl.watch.pool import PoolWatch
from fleetctl.watch.sample import BoxSample, Copy, Counts, ProxySample, Sample
from fleetctl.watch.summing import counts_of, together
from fleetctl.watch.told import Told

LIMIT = 1.5  # seconds that a box gives its engines to answer


class Watcher:
    """Samples of a fleet. Safe to use from any thread; one sample is taken at a time.

    ``away`` says why boxes are not in ``boxes``; they are tried again in the background where ``connect`` (name of the
    box → connection) is given. A box that does not answer delays no sample by more than ``limit`` and half a second:
    what it has is unknown then.
    """

    def __init__(
        self,
        boxes: Mapping[str, BoxConnection],
        fleet: Fleet,
        *,
        away: Mapping[str, FleetError] | None = None,
        connect: Callable[[str], BoxConnection] | None = None,
        limit: float = LIMIT,
    ) -> None:
        self._fleet = fleet
        self._limit = limit
        self._one_at_a_time = threading.Lock()
        self._names = wanted()
        self._releases: dict[str, tuple[int, Release]] = {}
        self._followed: dict[str, Followed] = {}
        self._pool = PoolWatch()
        self._asked: dict[str, Asked] = {}
        for name in fleet.boxes:
            reach = None if connect is None or name in boxes else lambda name=name: connect(name)
            self._asked[name] = Asked(name, boxes.get(name), reach, (away or {}).get(name))

    def sample(self) -> Sample:
        """The fleet now. Raises nothing for a box or engine that cannot be read."""
        with self._one_at_a_time:
            at = time.time()
            told = self._ask()
            generation, release = self._live(told)
            copies = tuple(self._copy(engine, release, told) for engine in release.engines) if release else ()
            return Sample(
                at=at,
                fleet=self._fleet.fleet,
                layout=release.layout if release else None,
                generation=generation,
                copies=copies,
                total=together([self._followed[copy.id].step for copy in copies if copy.known]),
                counts=counts_of(one.totals.sums for one in self._followed.values()),
                models=self._models(),
                boxes={name: self._box(name, told) for name in self._asked},
                proxy=_proxy(release, told),
                pool=self._pool.sample(release.pool, told)
                if release is not None and release.pool is not None
                else None,
                changed=max((one.changed for one in told.values() if one.changed is not None), default=None),
            )

    def close(self) -> None:
        """Try to reach no box any more. Connections that were handed in stay as they are."""
        for asked in self._asked.values():
            asked.end()

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self) -> dict[str, Told]:
        """All boxes at once; the answers that came in time."""
        for name, asked in self._asked.items():
            known = self._releases[name][0] if name in self._releases else None
            args: dict[str, Any] = {"box": name, "names": self._names, "known": known, "limit": self._limit}
            asked.ask(args, self._limit)
        deadline = time.monotonic() + self._limit + MARGIN
        told = {}
        for name, asked in self._asked.items():
            asked.wait(deadline)
            answer = asked.told
            if answer is not None:
                told[name] = answer
                if answer.generation is None:
                    self._releases.pop(name, None)
                elif answer.release is not None:
                    self._releases[name] = (answer.generation, answer.release)
        return told

    def _live(self, told: Mapping[str, Told]) -> tuple[int | None, Release | None]:
        """The generation of the box that leads, else the newest of those that answer now, else of those that did."""
        known = {name: self._releases[name] for name in told if name in self._releases} or self._releases
        if self._fleet.proxy.lead in known:
            return known[self._fleet.proxy.lead]
        return max(known.values(), key=lambda one: one[0], default=(None, None))

    def _copy(self, engine: Engine, release: Release, told: Mapping[str, Told]) -> Copy:
        head = engine.head.box
        followed = self._followed.setdefault(engine.id, Followed(engine.model))
        followed.served_as = engine.served_as
        answer = told.get(head)
        if answer is None:
            asked = self._asked.get(head)
            why = f"{head}: {asked.why or 'no answer'}" if asked else f"fleet.yaml does not name its box {head}"
            followed.missed()
        elif engine.id not in answer.engines:
            why = f"{head} is not in this layout yet, or not any more"
            followed.missed()
        elif (unit := answer.units.get(engine.head.unit)) is not None and unit.active in ("inactive", "failed"):
            why = f"{engine.head.unit} is {unit.active} on {head}"  # in a move another engine may answer at its port
            followed.missed()
        else:
            page = answer.engines[engine.id]
            why = followed.take(page, answer.boot) or ""
        return Copy(
            id=engine.id,
            model=engine.model,
            boxes=tuple(rank.box for rank in engine.ranks),
            server=_server(engine, release, told),
            unit=_unit(engine, told),
            figures=followed.figures,
            counts=counts_of([followed.totals.sums]),
            restarts=followed.totals.restarts,
            why=why or None,
        )

    def _models(self) -> dict[str, Counts]:
        models: dict[str, list[Mapping[str, float]]] = {}
        for one in self._followed.values():
            models.setdefault(one.model, []).append(one.totals.sums)
        return {model: counts_of(sums) for model, sums in models.items()}

    def _box(self, name: str, told: Mapping[str, Told]) -> BoxSample:
        if name not in told:
            return BoxSample(why=self._asked[name].why or "no answer")
        memory = told[name].memory
        return BoxSample(memory.total, memory.available, memory.swap_used, memory.pressure, told[name].drained)


def _server(engine: Engine, release: Release, told: Mapping[str, Told]) -> str:
    name = f"{engine.backend}/{engine.server}"
    boxes = release.proxy.boxes if release.proxy else ()
    words = []
    for box in boxes:
        proxy = told[box].proxy if box in told else None
        if proxy is not None and name in proxy.servers:
            words.append(proxy.servers[name].word)
    return "/".join(dict.fromkeys(words)) or "unknown"


def _unit(engine: Engine, told: Mapping[str, Told]) -> str:
    """The state of the units of all its ranks: the first that is not active stands for them."""
    for rank in engine.ranks:
        unit = told[rank.box].units.get(rank.unit) if rank.box in told else None
        word = "unknown" if unit is None else unit.active
        if unit is not None and unit.sub == "auto-restart":
            word = "auto-restart"
        if word != "active":
            return word if len(engine.ranks) == 1 else f"{word} on {rank.box}"
    return "active"


def _proxy(release: Release | None, told: Mapping[str, Told]) -> ProxySample:
    """All proxies that answered; nothing is known where none did."""
    boxes = release.proxy.boxes if release and release.proxy else ()
    known = [proxy for box in boxes if box in told and (proxy := told[box].proxy) is not None]
    if not known:
        return ProxySample()
    rates = [proxy.rate for proxy in known if proxy.rate is not None]
    return ProxySample(
        waiting=sum(proxy.waiting for proxy in known),
        held=sum(proxy.held for proxy in known),
        running=sum(proxy.running for proxy in known),
        request_rate=float(sum(rates)) if rates else None,
    )
