"""The steps of a move on a pool: its programs arrive, stop and start, and are seen at work. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fleetctl.facts.types import Observed
from fleetctl.plan.draft import Draft, Move, of_engine, on_box
from fleetctl.plan.engine_drafts import PROOFS
from fleetctl.plan.pool import kind_of
from fleetctl.render.names import POOL_STOP_LIMITS
from fleetctl.render.release import Release, Service
from fleetctl.spec.units import parse_duration, seconds

TITLES = {"nats": "NATS", "worker": "the worker", "gateway": "the gateway", "batch": "the runner of batch jobs"}


def ship_programs(move: Move) -> Iterable[Draft]:
    """Programs of fleetctl, and their libraries, are on the boxes that start them."""
    for box, bundles in move.target.programs.items():
        new = [bundle for bundle in bundles if not _there(move.observed, box, bundle.digest)]
        if new or any(service.box == box for service in move.difference.pool.start):
            yield on_box(
                box,
                f"{box} has the pool's programs and their libraries (or gets them from here)",
                bundles=[bundle.model_dump(mode="json") for bundle in bundles],
            )


def _there(observed: Observed, box: str, digest: str) -> bool:
    """They came with the generation that is current."""
    current = observed[box].release
    return current is not None and any(bundle.digest == digest for bundle in current.programs.get(box, ()))


def stop_gateway(move: Move) -> Iterable[Draft]:
    """Gateways stop."""
    return _stop(move, "gateway")


def stop_worker(move: Move) -> Iterable[Draft]:
    """Workers stop, with the engines that they loaded and that do not stay, and the runner of batch jobs."""
    return _stop(move, "worker", "batch")


def stop_nats(move: Move) -> Iterable[Draft]:
    """The queue stops."""
    return _stop(move, "nats")


def _stop(move: Move, *parts: str) -> Iterable[Draft]:
    boxes = frozenset(move.difference.boxes)
    for box, unit in move.difference.pool.stop:
        kind = kind_of(unit)
        if kind in parts:
            yield Draft(
                box,
                f"{box}/{unit}",
                f"stop {TITLES[kind]} on {box}",
                # The queue goes when nobody has anything to say to it any more, on whatever box.
                boxes if kind == "nats" else frozenset({box}),
                {
                    "unit": unit,
                    "limit": float(POOL_STOP_LIMITS[kind]),
                    "engines": _leaving(move, box) if kind == "worker" else {},
                },
            )


def _leaving(move: Move, box: str) -> dict[str, float]:
    """Units of the pool's engines on a box that do not stay as they are, with the seconds that they have to stop."""
    return _without(move, box, move.source, move.target)


def _coming(move: Move, box: str) -> dict[str, float]:
    """Units of the pool's engines on a box that were not there before, with the seconds that they have to stop."""
    return _without(move, box, move.target, move.source)


def _without(move: Move, box: str, release: Release, other: Release) -> dict[str, float]:
    same = {(rank.unit, rank.digest) for _, rank in other.lodgers_on(box)}
    stopping = move.difference.boxes[box].stop
    return {
        rank.unit: engine.stop_limit
        for engine, rank in release.lodgers_on(box)
        if (rank.unit, rank.digest) not in same or rank.unit in stopping
    }


def start_nats(move: Move) -> Iterable[Draft]:
    """The queue starts."""
    return _start(move, "nats")


def start_worker(move: Move) -> Iterable[Draft]:
    """Workers start, and they the engines that are pinned; and the runner of batch jobs."""
    return _start(move, "worker", "batch")


def start_gateway(move: Move) -> Iterable[Draft]:
    """Gateways start."""
    return _start(move, "gateway")


def _start(move: Move, *parts: str) -> Iterable[Draft]:
    for service in move.difference.pool.start:
        if service.kind in parts:
            yield Draft(
                service.box,
                f"{service.box}/{service.unit}",
                f"start {TITLES[service.kind]} on {service.box}",
                frozenset({service.box}),
                {
                    "unit": service.unit,
                    "limit": float(POOL_STOP_LIMITS[service.kind]),
                    "engines": _coming(move, service.box) if service.kind == "worker" else {},
                    "adapters": service.kind == "gateway" and _take_adapters(move.target),
                },
            )


def _take_adapters(release: Release) -> bool:
    """Some model of the pool takes LoRA adapters."""
    return release.pool is not None and any(one.engine.max_lora_rank for one in release.pool.lodgers)


def await_pool(move: Move, limit: Any = 60.0) -> Iterable[Draft]:
    """Programs of a pool are at work: they listen, are connected to the queue, and have loaded what is pinned."""
    boxes = frozenset(move.difference.boxes)
    for service in move.difference.pool.prove:
        pinned = [one.engine for one in move.target.pool.lodgers if one.pinned] if move.target.pool else []
        mine = [one for one in pinned if service.kind == "worker" and one.head.box == service.box]
        wait = parse_duration(limit) + sum(engine.load_limit for engine in mine)
        more = f" and has loaded {', '.join(engine.model for engine in mine)}" if mine else ""
        yield Draft(
            service.box,
            f"{service.box}/{service.unit}",
            f"{TITLES[service.kind]} on {service.box} is at work{more} (at most {seconds(wait)})",
            boxes if service.kind == "nats" else frozenset({service.box}),
            {
                "unit": service.unit,
                "url": _url(service),
                "address": service.address,
                "port": service.port,
                "pinned": {engine.model: engine.head.unit for engine in mine},
                "limit": wait,
            },
        )


def drain_worker(move: Move) -> Iterable[Draft]:
    """What a drained box has taken from the queue is finished there."""
    for box in move.difference.pool.drain:
        summary = f"the worker on {box} takes nothing more and finishes what it has (at most {seconds(move.patience)})"
        yield on_box(box, summary, limit=move.patience)


def restart_pooled(move: Move) -> Iterable[Draft]:
    """Engines of the pool start anew, one after the other; their requests wait in the queue, or go to other boxes."""
    engines = move.difference.pool.restart
    if engines:
        names = ", ".join(engine.id for engine in engines)
        found = [
            {
                "box": engine.head.box,
                "model": engine.model,
                "unit": engine.head.unit,
                "limit": move.patience + engine.stop_limit + engine.load_limit,
            }
            for engine in engines
        ]
        yield Draft(
            engines[0].head.box,
            "pool",
            f"start {names} anew, each after its last request{', one after the other' if len(engines) > 1 else ''}",
            frozenset(move.difference.boxes),
            {"engines": found},
        )


def gate_pool(move: Move) -> Iterable[Draft]:
    """Pinned engines answer, asked directly."""
    for lodger in move.difference.pool.gate:
        asked = ["model", "context", *PROOFS[lodger.engine.task]]
        yield of_engine(lodger.engine, f"{lodger.engine.id} answers: {', '.join(asked)}")


def gate_unpinned(move: Move) -> Iterable[Draft]:
    """Models that are not pinned are loaded once where they are new or another build, if gates.unpinned is set."""
    lodgers = move.target.pool.lodgers if move.target.pool and move.target.gates.unpinned else ()
    for lodger in lodgers:
        engine = lodger.engine
        if not lodger.pinned and engine.head.unit in move.difference.boxes[engine.head.box].lodging:
            asked = ", ".join(["model", "context", *PROOFS[engine.task]])
            within = f"at most {seconds(engine.load_limit)}"
            yield of_engine(engine, f"{engine.id} is loaded once ({within}) and answers: {asked}")


def _url(service: Service) -> str:
    """Where a program tells that it is at work, and that the bucket for long bodies takes them; empty for NATS, whose
    port is enough, and for what only runs."""
    host = f"[{service.address}]" if ":" in service.address else service.address
    return "" if service.kind in ("nats", "batch") else f"http://{host}:{service.port}/health?bodies"
