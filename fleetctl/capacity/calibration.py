"""From what an engine logged when it started to figures that later plans use. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from fleetctl.capacity.attention import Launch
from fleetctl.capacity.logs import parse_log
from fleetctl.capacity.overhead import Overhead
from fleetctl.errors import RefusedError
from fleetctl.spec.fleet_model import Measured, Model
from fleetctl.spec.units import gib

BATCHED_TOKENS = 8192
"""--max-num-batched-tokens where nothing says otherwise, as the forecast takes it too."""

HELD = 0.8
"""Part of its weights that an engine takes of the box's memory, at least, where that is the GPU's memory too."""


@dataclass(frozen=True)
class Started:
    """One rank of an engine that runs: what its box gave it, and what it said. Sizes are bytes."""

    engine: str
    box: str
    ranks: int
    memory: int
    share: float
    batched_tokens: int
    log: str
    weights: int | None = None
    """Weights as their files say: engines on a CPU do not log them."""
    taken: tuple[int, int] | None = None
    """What it took of the box's memory: the most at one time while it started, and when it was ready."""


def measure(started: Started, today: str) -> Measured:
    """Weights and overhead of one rank. Raises RefusedError, with the reason, where its log does not tell them.

    Overhead is what the share gave less weights and cache: activations at their peak, CUDA graphs, the context.
    """
    log, who = parse_log(started.log), f"{started.engine} on {started.box}"
    if re.search(r"as specified by kv_cache_memory_bytes|Explicitly set \(", started.log):
        raise RefusedError(
            f"{who} got its cache in bytes (kv_cache_memory:), and then vLLM does not measure what it needs besides",
            hint="take kv_cache_memory: out, `fleetctl apply`, calibrate, and put it in again",
        )
    weights = max(log.weights) if log.weights else started.weights if log.beside is not None else None
    if weights is None or not log.available:
        missing = " and ".join(
            word
            for word, there in (("its weights", weights is not None), ("memory for its cache", log.available))
            if not there
        )
        raise RefusedError(
            f"{who} did not log {missing}, or the journal has lost it",
            hint=f"`fleetctl restart {started.box}` and calibrate then",
        )
    available = min(log.available)
    requested = math.ceil((log.total or started.memory) * (log.share or started.share))
    overhead = (requested - available if log.beside is None else log.beside) - weights
    if overhead < 0:
        raise RefusedError(
            f"{who}: weights {gib(weights)} and cache {gib(available)} are more than the {gib(requested)} of its "
            "share: memory was given back to the box while it started",
            hint=f"`fleetctl restart {started.box}` in a quiet hour, and calibrate then",
        )
    return Measured(
        weights=weights,
        overhead=overhead,
        peak=log.activations,
        startup=_startup(started.taken, weights),
        ranks=started.ranks,
        batched_tokens=started.batched_tokens,
        at=today,
    )


def _startup(taken: tuple[int, int] | None, weights: int) -> int | None:
    """The most that a start took of the box's memory; None where the box's memory is not what the engine's is in."""
    most, ready = taken or (0, 0)
    return most if most and ready >= HELD * weights else None


def written(measured: Measured) -> dict[str, str]:
    """The figures as they stand in fleet.yaml: sizes in MiB, which is as exact as logs are."""
    values: dict[str, str] = {"weights": _mib(measured.weights), "overhead": _mib(measured.overhead)}
    if measured.peak is not None:
        values["peak"] = _mib(measured.peak)
    if measured.startup is not None:
        values["startup"] = _mib(measured.startup)
    numbers: Mapping[str, int] = {"ranks": measured.ranks, "batched_tokens": measured.batched_tokens}
    return {**values, **{key: str(number) for key, number in numbers.items()}, "at": f'"{measured.at}"'}


def of_box(model: Model, box: str, launch: Launch) -> tuple[int, Overhead, str] | None:
    """Weights of a rank, overhead and day, where they were measured on this box with the same division and batches."""
    found = model.measured.get(box)
    if found is None or found.ranks != launch.ranks or found.batched_tokens != launch.batched_tokens:
        return None
    return found.weights, Overhead(0, found.overhead, measured=True), found.at


def _mib(size: int) -> str:
    return f"{-(-size // 2**20)}MiB"
