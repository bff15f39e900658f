"""A pool as Prometheus metrics: its engines, what the queue holds of each model, its programs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric

from fleetctl.watch.metric import Told
from fleetctl.watch.pool_sample import PoolEngineSample, PoolModelSample, PoolProgramSample, PoolSample

OF_ENGINE = ("fleet", "layout", "model", "copy", "box")
OF_MODEL = ("fleet", "model")
OF_PROGRAM = ("fleet", "box", "program")
OF_BOX = ("fleet", "box")
_STEADY = "It goes on through restarts, and begins at what was counted when it was first read."


def _engine(name: str, text: str, *, counter: bool = False) -> Told:
    return Told(f"fleetctl_pool_engine_{name}", text, OF_ENGINE, counter)


def _model(name: str, text: str, *, counter: bool = False) -> Told:
    return Told(f"fleetctl_pool_{name}", text, OF_MODEL, counter)


def _is(phase: str) -> Callable[[PoolEngineSample], float | None]:
    return lambda engine: None if engine.phase == "unknown" else engine.phase == phase


_ENGINES: tuple[tuple[Told, Callable[[PoolEngineSample], float | None]], ...] = (
    (_engine("loaded", "1: it is loaded and takes requests."), _is("loaded")),
    (_engine("loading", "1: it is being loaded."), _is("loading")),
    (_engine("failed", "1: its last load failed; it is tried again, later each time."), _is("failed")),
    (_engine("pinned", "1: it is always loaded."), lambda one: None if one.phase == "unknown" else one.pinned),
    (_engine("memory_bytes", "What it takes of its box once it is loaded."), lambda one: one.memory),
    (_engine("requests_running", "Requests that it works on."), lambda one: one.running),
    (_engine("requests", f"Requests that it finished. {_STEADY}", counter=True), lambda one: one.requests),
    (_engine("tokens", f"Tokens that those took. {_STEADY}", counter=True), lambda one: one.tokens),
)
_MODELS: tuple[tuple[Told, Callable[[PoolModelSample], float | None]], ...] = (
    (_model("requests_waiting", "Requests in the queue that no box has taken."), lambda one: one.waiting),
    (_model("requests_at_work", "Requests that boxes have taken and not finished."), lambda one: one.at_work),
    (_model("requests_stored", "Both together: what the limit is about."), lambda one: one.stored),
    (
        _model("oldest_waiting_seconds", "For how long the oldest of those that wait has waited."),
        lambda one: one.oldest,
    ),
    (_model("batch_lines_waiting", "Lines of batch jobs in the queue."), lambda one: one.batch),
    (_model("dead_letters", "Requests that were given up, kept for 7 days."), lambda one: one.dead),
    (
        _model("refused", f"Requests that gateways refused with 429: the queue was full. {_STEADY}", counter=True),
        lambda one: one.refused,
    ),
)
LIMIT = Told("fleetctl_pool_requests_limit", "Requests of one model that the queue takes.", ("fleet",))
ACTIVE = Told("fleetctl_pool_program_active", "1: the unit of the program is active.", OF_PROGRAM)
CONNECTED = Told(
    "fleetctl_pool_program_connected", "1: it is connected to NATS. 0: not, or it says nothing.", OF_PROGRAM
)
TAKEN = Told("fleetctl_pool_memory_taken_bytes", "Memory of the engines that are loaded.", OF_BOX)
MEMORY = Told("fleetctl_pool_memory_limit_bytes", "Memory that engines of the pool may take together.", OF_BOX)
REDELIVERED = Told(
    "fleetctl_pool_redelivered",
    f"Requests that came to the box and had been with a worker before. {_STEADY}",
    OF_BOX,
    True,
)
POOL_METRICS = (
    *(told for told, _ in _ENGINES), *(told for told, _ in _MODELS),
    LIMIT, ACTIVE, CONNECTED, TAKEN, MEMORY, REDELIVERED,
)  # fmt: skip


def pool_families(fleet: str, layout: str, pool: PoolSample) -> Iterator[Metric]:
    """All metrics of a pool."""
    for told, of_engine in _ENGINES:
        yield told.family(
            ((fleet, layout, engine.model, engine.id, engine.box), of_engine(engine)) for engine in pool.engines
        )
    for told, of_model in _MODELS:
        yield told.family(((fleet, name), of_model(model)) for name, model in pool.models.items())
    yield LIMIT.family([((fleet,), pool.limit)])
    labels = [((fleet, one.box, one.kind), one) for one in pool.programs]
    yield ACTIVE.family((row, None if one.state == "unknown" else one.state == "active") for row, one in labels)
    yield CONNECTED.family((row, _connected(one)) for row, one in labels)
    workers = [((fleet, one.box), one) for one in pool.programs if one.kind == "worker"]
    yield TAKEN.family((row, one.memory_taken) for row, one in workers)
    yield MEMORY.family((row, one.memory_limit) for row, one in workers)
    yield REDELIVERED.family((row, one.redelivered) for row, one in workers)


def _connected(program: PoolProgramSample) -> float | None:
    """Missing for what does not say, and where nothing is known of its box."""
    if program.kind not in ("worker", "gateway") or program.state == "unknown":
        return None
    return bool(program.connected)
