"""The family *pool*: workers, models, requests that were given up, and the queue of a layout with a pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fleetctl.doctor.finding import Finding, Kind, Severity
from fleetctl.doctor.scene import Family, Scene
from fleetctl.facts.types import Seen
from fleetctl.spec.units import gib, size

FULL = 0.8  # part of the queue's store from which on it is told

_WORKER = "docs/worker.md; GET /state of the worker"
WORKER = Kind(
    "Q01",
    Severity.ERROR,
    "the worker of a pool is not at work",
    "a box of the pool whose worker does not answer, has lost the queue, or takes nothing because it is being stopped",
    "Requests for the models of the pool wait for other boxes; for those that only this box has, until they are late.",
    "journalctl -u fleetctl-worker says why; systemctl start fleetctl-worker",
    _WORKER,
)
FAILED = Kind(
    "Q02",
    Severity.WARNING,
    "a model of the pool cannot be loaded",
    "an engine of the pool whose last load failed, or that the guard keeps out because it hung again and again",
    "Each further try is later than the last, up to 5 minutes; meanwhile its requests wait.",
    "journalctl -u UNIT says what the engine said; then fleetctl pool load MODEL tries at once",
    _WORKER,
)
GIVEN_UP = Kind(
    "Q03",
    Severity.WARNING,
    "requests were given up",
    "workers that have given up requests since they were started, because engines died on them again and again",
    "A request that kills engines takes the others' time, three times; clients got 502 with the reason.",
    "journalctl -u fleetctl-worker names them; they are in the stream DEAD for seven days, with the reason",
    "docs/worker.md (what is promised)",
)
KEPT_OUT = Kind(
    "Q04",
    Severity.WARNING,
    "a model of the pool is kept out by a wish",
    "a model that an operator has evicted on every box that has it, so that nothing loads it; and pins that are not "
    "as in fleet.yaml (a note)",
    "An eviction lasts until the model is loaded or pinned again, over restarts: its requests wait until it is too "
    "late for them.",
    "fleetctl pool load MODEL, or fleetctl pool pin and unpin",
    "docs/residency.md; /var/lib/fleetctl/pool/wishes.json",
)
STORE = Kind(
    "Q05",
    Severity.WARNING,
    "the queue's store is nearly full",
    "a box with NATS on which four fifths of pool: nats: store: are taken, or whose disk has less left than the queue "
    "may yet take",
    "Without room nothing is accepted any more: clients get 503, and batch jobs stand still.",
    "fetch the results of batch jobs that have ended and remove them, make the disk larger, or raise store:",
    "docs/pool.md; files below /var/lib/fleetctl-nats",
)
OPEN = Kind(
    "Q06",
    Severity.WARNING,
    "the pool can be reached past the proxy",
    "a fleet with a pool and no firewall:, in which NATS has no tls:, or whose proxy asks for keys and its gateways "
    "do not",
    "A gateway asks for no key: whoever reaches its port uses the models. Without TLS the passwords of NATS, and all "
    "that is asked and answered, can be read on the network.",
    "write firewall: into fleet.yaml, and tls: below pool: nats: where others are in the network of the boxes",
    "docs/pool.md, docs/firewall.md",
)
KINDS = (WORKER, FAILED, GIVEN_UP, KEPT_OUT, STORE, OPEN)


class Store(Seen):
    """Bytes that the queue takes on a box, and that its disk has left."""

    used: int
    free: int


class PoolTold(Seen):
    """The answer of the op ``examine_pool``. ``state`` is the worker's own (fleetctl/pool/worker/state.py)."""

    worker: bool
    state: dict[str, Any] | None = None
    why: str = ""
    store: Store | None = None


def ask(scene: Scene, box: str) -> dict[str, Any] | None:
    """Boxes that have a part in the pool of what is live."""
    return {} if scene.live.pool is not None and scene.live.pool.on(box) else None


def find(scene: Scene, told: Mapping[str, PoolTold]) -> Iterator[Finding]:
    """Findings of all boxes, and of the fleet."""
    if scene.live.pool is None or any(facts.moving for facts in scene.observed.values()):
        return  # a move starts and stops what is judged here
    for box, one in told.items():
        if scene.live.lodgers_on(box):
            yield from _worker(box, one)
            yield from _failed(box, one)
            yield from _given_up(box, one)
        yield from _store(scene, box, one)
    yield from _wishes(scene, told)
    yield from _open(scene)


def _worker(box: str, told: PoolTold) -> Iterator[Finding]:
    state, why = told.state, ""
    if state is None:
        why = told.why or "it has no configuration"
    elif state.get("draining"):
        why = "it is being stopped, and takes nothing more"
    elif not state.get("connected"):
        why = "it has no connection to NATS"
    if why:
        fix = f"on {box}: journalctl -u fleetctl-worker; systemctl restart fleetctl-worker"
        yield WORKER.found(box, "fleetctl-worker.service", f"the worker of {box} is not at work: {why}", fix=fix)


def _engines(told: PoolTold) -> Iterator[tuple[str, dict[str, Any]]]:
    for model, one in ((told.state or {}).get("models") or {}).items():
        for engine in one.get("engines") or ():
            yield str(model), engine


def _failed(box: str, told: PoolTold) -> Iterator[Finding]:
    for model, engine in _engines(told):
        if engine.get("phase") == "failed":
            unit, times = str(engine["unit"]), int(engine.get("failures") or 0)
            yield FAILED.found(
                box,
                unit,
                f"{model} could not be loaded on {box}" + (f", {times} times in a row" if times > 1 else ""),
                str(engine.get("reason") or ""),
                fix=f"on {box}: journalctl -u {unit}; then fleetctl pool load {model} --box {box}",
            )


def _given_up(box: str, told: PoolTold) -> Iterator[Finding]:
    counts = (told.state or {}).get("counts") or {}
    if dead := int(counts.get("dead") or 0):
        yield GIVEN_UP.found(
            box,
            "fleetctl-worker.service",
            f"{box} has given up {dead} request{'s' if dead > 1 else ''} since its worker was started",
            ", ".join(f"{name} {number}" for name, number in counts.items()),
            *(f"{model}: engine died {e['deaths']} times" for model, e in _engines(told) if e.get("deaths")),
            fix=f"on {box}: journalctl -u fleetctl-worker | grep 'given up'",
        )


def _wishes(scene: Scene, told: Mapping[str, PoolTold]) -> Iterator[Finding]:
    """A model that is out is told if it is so on every box that has it; a pin wherever it is not as in fleet.yaml."""
    assert scene.live.pool is not None
    seen = [(model, box, engine) for box, one in told.items() for model, engine in _engines(one)]
    for model in dict.fromkeys(one.engine.model for one in scene.live.pool.lodgers):
        boxes = {one.engine.head.box for one in scene.live.pool.lodgers if one.engine.model == model}
        out = {box for name, box, engine in seen if name == model and engine.get("wish") == "evict"}
        if out and out == boxes:
            yield KEPT_OUT.found(
                None,
                model,
                f"{model} was evicted on every box that has it, and stays out",
                *(f"{box}: wish evict" for box in sorted(out)),
                fix=f"fleetctl pool load {model}",
            )
    wanted = {(one.engine.model, one.engine.head.box): one.pinned for one in scene.live.pool.lodgers}
    for model, box, engine in seen:
        pinned = bool(engine.get("pinned"))
        if wanted.get((model, box), pinned) != pinned:
            now, file = ("pinned", "not") if pinned else ("not pinned", "pinned")
            yield KEPT_OUT.found(
                box,
                model,
                f"{model} is {now} on {box}, and {file} in fleet.yaml",
                fix=f"fleetctl pool {'unpin' if pinned else 'pin'} {model} --box {box}, or change pin: in fleet.yaml",
                severity=Severity.NOTE,
            )


def _store(scene: Scene, box: str, told: PoolTold) -> Iterator[Finding]:
    pool = scene.fleet.pool
    if pool is None or told.store is None or box not in pool.nats.boxes:
        return
    most, used, free = pool.nats.store, told.store.used, told.store.free
    yet = max(0, most - used)
    if used >= FULL * most or free < yet:
        full = used >= FULL * most
        why = f"{gib(used)} of {gib(most)} are taken" if full else f"its disk has {size(free)} left"
        yield STORE.found(
            box,
            "/var/lib/fleetctl-nats",
            f"the queue on {box} has little room: {why}",
            f"taken {size(used)}, store: {gib(most)}, free on the disk {size(free)}",
            fix="fleetctl batch list shows jobs whose results are kept; raise store: below pool: nats: if the disk has "
            "room, else make room on it"
            if full
            else f"make room on that disk, or write store: {max(1, (used + free) // 2**20)}MiB, or less",
        )


def _open(scene: Scene) -> Iterator[Finding]:
    fleet = scene.fleet
    if fleet.pool is None or fleet.firewall is not None:
        return
    says = []
    if fleet.pool.nats.tls is None and len(fleet.boxes) > 1:
        says.append(f"NATS at port {fleet.pool.nats.port} speaks without TLS")
    if fleet.proxy.api_keys and scene.live.gateways():
        says.append(f"gateways at port {fleet.pool.port} ask for no key, and the proxy does")
    if says:
        yield OPEN.found(None, "fleet.yaml", f"there is no firewall:, {' and '.join(says)}", fix=OPEN.fix)


POOL = Family("pool", KINDS, find, PoolTold, "examine_pool", ask)
