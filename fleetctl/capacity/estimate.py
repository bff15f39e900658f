"""The whole sum for one model with one division over boxes, line by line, as values.

    memory x share = what the engine may use
    - weights - overhead - LoRA slots = memory for the cache
    memory for the cache / bytes of a block = blocks; blocks / Q = requests of full context; times context = tokens

Each rank stands on a box of its own, as in this fleet. The rank with the least room decides.
Source of the first two lines (vLLM 0.32.0): ``v1/worker/gpu_worker.py``, ``determine_available_memory``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fleetctl.capacity.attention import Launch, dtype_of
from fleetctl.capacity.lora import lora_bytes
from fleetctl.capacity.overhead import Overhead, model_overhead
from fleetctl.capacity.pages import Paging, page_model
from fleetctl.capacity.shape import ModelShape
from fleetctl.capacity.weights import Weights
from fleetctl.errors import SpecError


@dataclass(frozen=True)
class Lora:
    """Slots for adapters."""

    slots: int = 0
    rank: int = 16
    width: int | None = None
    """Of the adapted matrices on a rank, as the files say; None: by the shape."""


@dataclass(frozen=True)
class Room:
    """A box: its memory, and what the engine may take of it. All boxes of a division are alike."""

    memory: int
    share: float
    """gpu_memory_utilization"""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise SpecError(f"a share of {self.share} is not between 0 and 1")
        if self.memory < 1:
            raise SpecError("a box without memory", hint="give --box-memory, for example 128GB")

    @property
    def requested(self) -> int:
        """Bytes that the engine asks for: rounded up, as it does."""
        return math.ceil(self.memory * self.share)

    @property
    def rest(self) -> int:
        """Bytes left for everything else on the box."""
        return self.memory - self.requested


@dataclass(frozen=True)
class Line:
    """A line of the sum. ``size`` in bytes; negative: it is taken away."""

    what: str
    size: int
    estimate: bool = False
    note: str = ""


@dataclass(frozen=True)
class Outcome:
    """What is left for the cache, and what it holds."""

    available: int
    """Bytes on the rank with the least room; negative: the engine does not fit."""
    tokens: int
    requests: float
    """Requests of full context that fit at once."""
    starts: bool


@dataclass(frozen=True)
class Estimate:
    """One division over boxes, and what it gives."""

    launch: Launch
    room: Room
    dtype: str
    """KV dtype that is used."""
    paging: Paging
    weights: int
    """Bytes on the rank with the least room."""
    overhead: Overhead
    lines: tuple[Line, ...]
    """The sum, down to the memory for the cache."""
    outcome: Outcome
    low: Outcome
    """With the most overhead that is likely, and the dearest reading of what is not known."""
    high: Outcome | None
    """With the least overhead, and the cheapest reading; None: no bound."""
    exact: bool
    """Whether all of the model's caches are known; if not, low and high are what counts."""

    @property
    def boxes(self) -> int:
        return self.launch.ranks


def estimate(
    shape: ModelShape,
    launch: Launch,
    room: Room,
    weights: Weights | int,
    *,
    overhead: Overhead | None = None,
    lora: Lora | None = None,
    cache: int | None = None,
) -> Estimate:
    """Sum up one division. ``weights`` as weighed from the files, or bytes of the whole model as measured.

    ``overhead`` replaces the documented model, where an engine's log gave it. With ``cache`` bytes of
    --kv-cache-memory-bytes the cache is that on each rank, whatever the share leaves, and an outcome starts only where
    the share holds all of it. Raises SpecError where vLLM would refuse the division.
    """
    lora = lora or Lora()
    overhead = overhead or model_overhead(shape, launch)
    adapters = -(-lora_bytes(shape, lora.slots, lora.rank, launch.tp, lora.width) // launch.pp)
    stages = weights.stages if isinstance(weights, Weights) else (-(-weights // launch.ranks),) * launch.pp
    paging = page_model(shape, launch)

    def result(paged: Paging, beyond: int) -> Outcome:
        available = [room.requested - held - beyond - adapters for held in stages]
        fits = cache is None or min(available) >= cache
        if cache is not None:
            available = [cache] * len(available)
        starts = fits and paged.starts(available)
        return Outcome(min(available), paged.tokens(available), paged.concurrency(available), starts)

    low, high = paging, None if shape.unknown else paging
    if shape.unknown:
        low = page_model(shape, launch, shape.unknown.dearest)
        if shape.unknown.cheapest is not None:
            high = page_model(_without_heads(shape), launch, shape.unknown.cheapest)
    return Estimate(
        launch=launch,
        room=room,
        dtype=dtype_of(shape, launch),
        paging=paging,
        weights=max(stages),
        overhead=overhead,
        lines=tuple(_lines(room, max(stages), launch, overhead, adapters)),
        outcome=result(paging, overhead.total),
        low=result(low, overhead.high),
        high=result(high, overhead.low) if high is not None else None,
        exact=shape.unknown is None,
    )


def _without_heads(shape: ModelShape) -> ModelShape:
    """The same model for its cheapest reading, where heads have no say in the cache."""
    return replace(shape, heads=0)


def _lines(room: Room, weights: int, launch: Launch, overhead: Overhead, adapters: int) -> list[Line]:
    lines = [
        Line("memory of the box", room.memory),
        Line("left for the rest of the box", -room.rest, note=f"share {room.share:g}"),
        Line("weights", -weights, note="of one rank" if launch.ranks > 1 else ""),
    ]
    if overhead.measured:
        lines.append(Line("engine and activations", -overhead.total, note="measured"))
    else:
        lines.append(Line("engine", -overhead.engine, estimate=True))
        note = f"{launch.batched_tokens:,} tokens a batch"
        lines.append(Line("activations", -overhead.activations, estimate=True, note=note))
    if adapters:
        lines.append(Line("LoRA slots", -adapters, estimate=True))
    return lines
