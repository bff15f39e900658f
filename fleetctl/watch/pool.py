"""From what workers and gateways of a pool say to its sample: counters made steady, the queue told once. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pydantic import ValidationError

from fleetctl.facts.seen import Seen, first_fault
from fleetctl.render.release import Pool, Service
from fleetctl.watch.pool_sample import PoolEngineSample, PoolModelSample, PoolProgramSample, PoolSample
from fleetctl.watch.reading import lines
from fleetctl.watch.told import ProgramTold, Told
from fleetctl.watch.totals import Totals


class _Engine(Seen):
    unit: str
    phase: str
    pinned: bool = False
    wish: str | None = None
    memory: int | None = None
    running: int | None = None
    requests: float | None = None
    tokens: float | None = None
    deaths: int | None = None
    idle_seconds: float | None = None
    load_seconds: float | None = None
    reason: str = ""


class _Model(Seen):
    local: int | None = None
    engines: tuple[_Engine, ...] = ()


class _Memory(Seen):
    limit: int
    taken: int


class _Waiting(Seen):
    waiting: int
    at_work: int
    oldest: float
    stored: int
    redelivered: int
    batch: int
    dead: int


class _Queue(Seen):
    time: float
    limit: int
    models: dict[str, _Waiting] = {}


class _Worker(Seen):
    connected: bool
    drained: bool = False
    memory: _Memory
    counts: dict[str, float] = {}
    models: dict[str, _Model] = {}
    queue: _Queue | None = None


@dataclass
class _Counted:
    """Counters of one program, or one engine, and what they grew by since the sample before."""

    totals: Totals = field(default_factory=Totals)
    rates: dict[str, float] = field(default_factory=dict)
    _before: tuple[str, float, Mapping[str, float]] | None = None

    def take(self, counters: Mapping[str, float], run: str | None, at: float, boot: str) -> None:
        """Counters of a process, read at a time of its box's steady clock."""
        self.totals.read(counters, process=run)
        sums, self.rates = self.totals.sums, {}
        if self._before is not None and self._before[0] == boot and at > self._before[1]:
            seconds, earlier = at - self._before[1], self._before[2]
            self.rates = {name: max(0.0, value - earlier.get(name, 0.0)) / seconds for name, value in sums.items()}
        self._before = (boot, at, sums)


class PoolWatch:
    """Remembers what was counted from one sample to the next."""

    def __init__(self) -> None:
        self._counted: dict[tuple[str, str], _Counted] = {}

    def sample(self, pool: Pool, told: Mapping[str, Told]) -> PoolSample:
        """The pool now."""
        workers: dict[str, _Worker] = {}
        programs = [self._program(service, told.get(service.box), workers) for service in pool.services]
        engines = self._engines(pool, workers, told)
        gateways = [self._of(program.box, "gateway") for program in programs if program.kind == "gateway"]
        queues = [worker.queue for worker in workers.values() if worker.queue is not None]
        names = dict.fromkeys(lodger.engine.model for lodger in pool.lodgers)
        models = {name: _model(name, queues, engines, gateways) for name in names}
        redelivered = [program.redelivered_rate for program in programs]
        return PoolSample(
            programs=tuple(programs),
            engines=engines,
            models=models,
            limit=max(queues, key=lambda queue: queue.time).limit if queues else None,
            waiting=_sum(one.waiting for one in models.values()),
            oldest=max((one.oldest for one in models.values() if one.oldest is not None), default=None),
            batch=_sum(one.batch for one in models.values()),
            dead=_sum(one.dead for one in models.values()),
            refused_rate=_total(one.refused_rate for one in models.values()),
            redelivered_rate=_total(redelivered),
        )

    def _of(self, box: str, what: str) -> _Counted:
        return self._counted.setdefault((box, what), _Counted())

    def _program(self, service: Service, box: Told | None, workers: dict[str, _Worker]) -> PoolProgramSample:
        base = PoolProgramSample(service.kind, service.box, service.unit)
        if box is None:
            return PoolProgramSample(service.kind, service.box, service.unit, why="its box does not answer")
        state = box.units[service.unit].active if service.unit in box.units else "unknown"
        page = box.pool.get(service.kind)
        if service.kind not in ("worker", "gateway"):
            return PoolProgramSample(service.kind, service.box, service.unit, state)
        if page is None or page.why is not None:
            self._of(service.box, service.kind).rates = {}
            why = page.why if page is not None else "it is not in this layout yet"
            return PoolProgramSample(service.kind, service.box, service.unit, state, why=why)
        if service.kind == "gateway":
            return self._gateway(base, state, page, box.boot)
        try:
            worker = _Worker.model_validate(page.state)
        except ValidationError as error:
            return PoolProgramSample(
                service.kind, service.box, service.unit, state, why=f"it is of another version: {first_fault(error)}"
            )
        workers[service.box] = worker
        counted = self._of(service.box, "worker")
        counted.take({"redelivered": worker.counts.get("redelivered", 0.0)}, page.run, page.at, box.boot)
        return PoolProgramSample(
            service.kind,
            service.box,
            service.unit,
            state,
            connected=worker.connected,
            drained=worker.drained,
            memory_limit=worker.memory.limit,
            memory_taken=worker.memory.taken,
            redelivered=counted.totals.sums.get("redelivered"),
            redelivered_rate=counted.rates.get("redelivered"),
        )

    def _gateway(self, base: PoolProgramSample, state: str, page: ProgramTold, boot: str) -> PoolProgramSample:
        connected, refused = None, dict[str, float]()
        for line in lines(page.lines):
            if not math.isfinite(line.value):
                continue
            if line.name == "fleetctl_gateway_connected":
                connected = line.value > 0
            elif line.name == "fleetctl_gateway_requests_total":
                model = line.labels.get("model", "")
                refused.setdefault(model, 0.0)
                refused[model] += line.value if line.labels.get("code") == "429" else 0.0
        self._of(base.box, "gateway").take(refused, page.run, page.at, boot)
        return PoolProgramSample(base.kind, base.box, base.unit, state, connected=connected)

    def _engines(
        self, pool: Pool, workers: Mapping[str, _Worker], told: Mapping[str, Told]
    ) -> tuple[PoolEngineSample, ...]:
        found = []
        for lodger in pool.lodgers:
            engine, box = lodger.engine, lodger.engine.head.box
            counted, worker = self._of(box, engine.id), workers.get(box)
            model = worker.models.get(engine.model) if worker is not None else None
            seen = next((one for one in model.engines if one.unit == engine.head.unit), None) if model else None
            if model is None or seen is None:
                counted.rates = {}
                sums = counted.totals.sums
                found.append(
                    PoolEngineSample(
                        engine.id,
                        engine.model,
                        box,
                        pinned=lodger.pinned,
                        memory=lodger.memory,
                        requests=sums.get("requests"),
                        tokens=sums.get("tokens"),
                    )
                )
                continue
            page = told[box].pool["worker"]
            counters = {name: value for name in ("requests", "tokens") if (value := getattr(seen, name)) is not None}
            counted.take(counters, page.run, page.at, told[box].boot)
            found.append(
                PoolEngineSample(
                    engine.id,
                    engine.model,
                    box,
                    phase=seen.phase,
                    pinned=seen.pinned,
                    wish=seen.wish,
                    memory=seen.memory,
                    running=seen.running,
                    local=model.local,
                    request_rate=counted.rates.get("requests"),
                    token_rate=counted.rates.get("tokens"),
                    requests=counted.totals.sums.get("requests"),
                    tokens=counted.totals.sums.get("tokens"),
                    deaths=seen.deaths,
                    idle_seconds=seen.idle_seconds,
                    load_seconds=seen.load_seconds,
                    reason=seen.reason,
                )
            )
        return tuple(found)


def _model(
    name: str, queues: Iterable[_Queue], engines: Iterable[PoolEngineSample], gateways: Iterable[_Counted]
) -> PoolModelSample:
    """A model: of the queue the newest look that has it, whichever worker it came from."""
    looks = [queue for queue in queues if name in queue.models]
    queue = max(looks, key=lambda look: look.time).models[name] if looks else None
    mine = [engine for engine in engines if engine.model == name]
    gateways = list(gateways)
    return PoolModelSample(
        **(queue.model_dump() if queue is not None else {}),
        request_rate=_total(engine.request_rate for engine in mine),
        token_rate=_total(engine.token_rate for engine in mine),
        # A gateway that has answered nothing for a model has refused nothing of it.
        refused=_total(one.totals.sums.get(name, 0.0) if one.totals.sums else None for one in gateways),
        refused_rate=_total(one.rates.get(name, 0.0) if one.rates else None for one in gateways),
    )


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
