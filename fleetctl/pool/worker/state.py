"""What a worker says of itself: as JSON, to whoever asks at the subject ``state`` or for /state, and as metrics.

The JSON object::

    {"box": "spark1", "version": 1, "time": 1764540000.0, "connected": true, "draining": false,
     "drained": false,                                        by an operator
     "memory": {"limit": …, "taken": …, "guard": ""},         bytes; why the guard lets nothing be loaded
     "held": …,                                               requests that are here, or on their way
     "counts": {"delivered": …, "redelivered": …, "finished": …, "duplicates": …, "returned": …, "dead": …,
                "cancelled": …},
     "models": {"minilm": {"waiting": …, "waiting_batch": …,  requests in the queue, as last heard
                           "oldest": …,                       seconds that the oldest of them has waited
                           "local": …, "running": …,          requests that this box holds
                           "tokens_per_second": …, "requests_per_second": …,   of a busy engine
                           "engines": [{"name": …, "unit": …, "phase": "loaded", "pinned": …, "wish": null,
                                        "considered": null,   seconds; other boxes are asked whether to load it
                                        "memory": …, "running": …, "calls": …, "concurrency": …,
                                        "load_seconds": …, "idle_seconds": …, "busy_seconds": …,
                                        "requests": …, "tokens": …,   finished since the worker began
                                        "deaths": …, "failures": …, "reason": ""}]}}}
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fleetctl.pool.worker.engine import Engine
from fleetctl.pool.worker.guarded import said

if TYPE_CHECKING:
    from fleetctl.pool.worker.worker import Worker

VERSION = 1


def state(worker: Worker) -> dict[str, Any]:
    """The JSON object."""
    loading = worker.loading
    return {
        "box": worker.config.box,
        "version": VERSION,
        "time": time.time(),
        "connected": worker.connected,
        "draining": worker.intake.draining,
        "drained": worker.drained,
        "held": worker.held,
        "memory": {
            "limit": loading.memory,
            "taken": sum(e.config.memory for e in loading.engines if _takes(e)),
            "guard": said(loading.guard).hold,
        },
        "counts": dict(worker.intake.counts),
        "models": {model: _model(worker, model) for model in worker.desks},
    }


def _takes(engine: Engine) -> bool:
    return engine.phase in ("loading", "loaded", "unloading")


def _model(worker: Worker, model: str) -> dict[str, Any]:
    desk = worker.desks[model]
    return {
        "waiting": worker.queued(model, "work"),
        "oldest": round(worker.oldest(model), 1),
        "waiting_batch": worker.queued(model, "batch"),
        "local": sum(len(line) for line in desk.lines.values()),
        "running": sum(len(engine.running) for engine in desk.engines),
        "tokens_per_second": round(desk.pace.tokens_per_second, 1),
        "requests_per_second": round(desk.pace.requests_per_second, 1),
        "engines": [_engine(engine) for engine in desk.engines],
    }


def _engine(engine: Engine) -> dict[str, Any]:
    idle = None if engine.last_used is None or engine.calls else round(time.monotonic() - engine.last_used, 1)
    return {
        "name": engine.name,
        "unit": engine.config.unit,
        "phase": engine.phase,
        "pinned": engine.pinned,
        "wish": engine.wish,
        "considered": None if engine.considered is None else time.monotonic() - engine.considered,
        "memory": engine.config.memory,
        "running": len(engine.running),
        "calls": engine.calls,
        "concurrency": engine.config.concurrency,
        "load_seconds": engine.load_seconds,
        "idle_seconds": idle,
        "busy_seconds": round(engine.busy_seconds, 3),
        "requests": engine.requests,
        "tokens": engine.tokens,
        "deaths": engine.deaths,
        "failures": engine.failures,
        "reason": engine.reason,
    }


def metrics(worker: Worker) -> str:
    """The same for Prometheus, as text."""
    said = state(worker)
    lines = [
        *_family("fleetctl_worker_memory_limit_bytes", "gauge", "Memory of all engines together."),
        f"fleetctl_worker_memory_limit_bytes {said['memory']['limit']}",
        *_family("fleetctl_worker_memory_taken_bytes", "gauge", "Memory of those that are loaded."),
        f"fleetctl_worker_memory_taken_bytes {said['memory']['taken']}",
        *_family("fleetctl_worker_connected", "gauge", "Whether NATS is there."),
        f"fleetctl_worker_connected {int(said['connected'])}",
        *_family("fleetctl_worker_requests_total", "counter", "Requests, by what has become of them."),
        *(f'fleetctl_worker_requests_total{{event="{name}"}} {said["counts"].get(name, 0)}' for name in EVENTS),
    ]
    for name, kind, key, text in _OF_A_MODEL:
        lines += _family(name, kind, text)
        lines += (f'{name}{{model="{_label(model)}"}} {values[key]}' for model, values in said["models"].items())
    for name, kind, key, text in _OF_AN_ENGINE:
        lines += _family(name, kind, text)
        lines += _engines(name, key, said)
    return "\n".join(lines) + "\n"


EVENTS = ("delivered", "redelivered", "finished", "duplicates", "returned", "dead", "cancelled")
_OF_A_MODEL = (
    ("fleetctl_worker_queue_waiting", "gauge", "waiting", "Requests in the queue, as last heard."),
    ("fleetctl_worker_batch_waiting", "gauge", "waiting_batch", "Lines of batch jobs in the queue, as last heard."),
    ("fleetctl_worker_local_waiting", "gauge", "local", "Requests that this box has taken and not begun."),
    ("fleetctl_worker_running", "gauge", "running", "Requests at work."),
    ("fleetctl_worker_tokens_per_second", "gauge", "tokens_per_second", "Measured throughput of a busy engine."),
)
_OF_AN_ENGINE = (
    ("fleetctl_worker_engine_loaded", "gauge", "phase", "Whether the engine takes requests."),
    ("fleetctl_worker_engine_busy_seconds_total", "counter", "busy_seconds", "Time in which it worked."),
    ("fleetctl_worker_engine_requests_total", "counter", "requests", "Requests that it has finished."),
    ("fleetctl_worker_engine_tokens_total", "counter", "tokens", "Tokens that those took."),
    ("fleetctl_worker_engine_deaths_total", "counter", "deaths", "Times that it died while it was loaded."),
)


def _family(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"


def _engines(name: str, key: str, said: dict[str, Any]) -> Iterator[str]:
    for model, values in said["models"].items():
        for engine in values["engines"]:
            value = int(engine["phase"] == "loaded") if key == "phase" else engine[key]
            yield f'{name}{{model="{_label(model)}",engine="{_label(engine["name"])}"}} {value}'


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
