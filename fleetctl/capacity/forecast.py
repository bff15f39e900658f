"""What an engine of a layout will have for its cache, from fleet.yaml and the model's own files. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fleetctl.capacity.attention import Launch
from fleetctl.capacity.calibration import BATCHED_TOKENS, of_box
from fleetctl.capacity.config import quant_method, read_shape
from fleetctl.capacity.estimate import Estimate, Lora, Room, estimate
from fleetctl.capacity.headers import Tensor
from fleetctl.capacity.matrices import adapted_width
from fleetctl.capacity.weights import weigh
from fleetctl.errors import SpecError
from fleetctl.spec.fleet import Placement
from fleetctl.spec.fleet_model import Measured, Model
from fleetctl.spec.units import gib

_DRAFT_IN_MODEL = ("mtp", "deepseek_mtp", "qwen3_next_mtp", "ernie_mtp", "glm4_moe_mtp", "mimo_mtp")
"""Methods of speculative decoding whose layers are in the model's own files."""
_ON_CPU = "VLLM_CPU_KVCACHE_SPACE"
"""With it vLLM on the CPU is told the size of its cache, and a share of the memory means nothing."""


@dataclass(frozen=True)
class Files:
    """What was read of a model: config.json, and the tensors that the headers of its weights tell of."""

    where: str
    config: bytes
    tensors: Sequence[Tensor]


@dataclass(frozen=True)
class Forecast:
    """The sum for one engine in lines, and what comes of it. ``tokens`` is None where it cannot be told."""

    lines: tuple[str, ...]
    tokens: int | None = None
    low: int | None = None
    high: int | None = None
    cannot_start: bool = False
    """Not even with the least that is likely to be needed beyond weights and cache."""
    in_doubt: bool = False
    """Perhaps not: with the most that is likely to be needed it does not start."""
    exact: bool = False
    """The cache is given in bytes (kv_cache_memory): what is said of starting is said of staying within the share."""
    weights: int | None = None
    """Bytes on the rank; None: not known."""
    least: int | None = None
    """Bytes with which it starts, also with the most overhead that is likely; None: not known."""
    beyond: int = 0
    """What it takes beyond its share for a while when it starts, as was measured."""


def forecast(
    model: Model, placement: Placement, box: str, memory: int, share: float, files: Files, arguments: Mapping[str, str]
) -> Forecast:
    """The sum of an engine with ``share`` (gpu_memory_utilization) of the ``memory`` in bytes of a ``box``.

    The box is the one of the rank that decides: its settings and what was measured there count. ``arguments`` are flags
    of its command line and their values (True flags have ""). Never raises: what is not known is said in the lines.
    """
    if _ON_CPU in {**model.environment, **placement.environment}:
        return Forecast((f"the cache is what {_ON_CPU} says",))
    try:
        shape = read_shape(files.config, files.where)
        launch = _launch(model, placement, box, arguments)
        cache = _number(arguments.get("--kv-cache-memory-bytes"), 15) or placement.boxes[box].kv_cache_memory
        room, calibrated, lora = Room(memory, share), of_box(model, box, launch), _lora(arguments)
        if calibrated is not None:
            held, overhead, at = calibrated  # slots for adapters are in it, as in what loading took
            found = estimate(shape, launch, room, held * launch.ranks, overhead=overhead, cache=cache)
            return _with_peak(_told(found, model.context, cache, at), model.measured[box], room)
        known = model.weights_size if not files.tensors else None
        if not files.tensors and known is None:
            return Forecast((f"{files.where}: no safetensors files, so the cache is not known",))
        method = quant_method(files.config)
        weights = known if known is not None else weigh(files.tensors, shape, launch, method)
        if lora.slots and files.tensors:
            lora = replace(lora, width=adapted_width(files.tensors, shape, launch.tp, method))
        return _told(estimate(shape, launch, room, weights, lora=lora, cache=cache), model.context, cache)
    except SpecError as error:
        return Forecast((f"the cache is not known: {error.message}",))


def _with_peak(found: Forecast, measured: Measured, room: Room) -> Forecast:
    """The same, with what a start was seen to take at its peak where that is more than the share."""
    beyond = (measured.startup or 0) - room.requested
    if beyond <= 0:
        return found
    peak = f"while it starts: up to {gib(measured.startup or 0)}, {gib(beyond)} more than its share (measured)"
    return replace(found, lines=(*found.lines, peak), beyond=beyond)


def _launch(model: Model, placement: Placement, box: str, arguments: Mapping[str, str]) -> Launch:
    ranks = len(placement.boxes) if placement.split is not None else 1
    tensor = ranks if placement.parallel == "tensor" else 1
    speculative = model.speculative
    drafts = speculative.num_speculative_tokens if speculative and speculative.method in _DRAFT_IN_MODEL else 0
    block = _number(arguments.get("--block-size"))
    return Launch(
        context=model.context,
        tp=max(tensor, _number(arguments.get("--tensor-parallel-size")) or 1),
        pp=max(ranks // tensor, _number(arguments.get("--pipeline-parallel-size")) or 1),
        kv=arguments.get("--kv-cache-dtype") or "auto",
        state=arguments.get("--mamba-ssm-cache-dtype") or "auto",
        spec_tokens=drafts,
        prefix_caching=arguments.get("--enable-prefix-caching") != "no",
        batched_tokens=_number(arguments.get("--max-num-batched-tokens")) or BATCHED_TOKENS,
        sequences=_number(arguments.get("--max-num-seqs")) or placement.boxes[box].concurrency or placement.concurrency,
        block=block,
    )


def _lora(arguments: Mapping[str, str]) -> Lora:
    """Slots for adapters, with vLLM's own defaults: one of rank 16."""
    if arguments.get("--enable-lora", "no") == "no":
        return Lora()
    slots, rank = _number(arguments.get("--max-loras")), _number(arguments.get("--max-lora-rank"))
    return Lora(1 if slots is None else slots, 16 if rank is None else rank)


def _number(word: str | None, digits: int = 9) -> int | None:
    return int(word) if word is not None and word.isdecimal() and len(word) <= digits else None


def _told(found: Estimate, context: int, cache: int | None, at: str = "") -> Forecast:
    parts = [f"{line.what} {gib(abs(line.size))}{' (estimate)' if line.estimate else ''}" for line in found.lines[2:]]
    held = found.weights + sum(-line.size for line in found.lines[3:])
    left = found.room.requested - held
    sums = f"{gib(found.room.requested)} - {' - '.join(parts)} = {gib(left)} for the cache"
    if at:
        sums += f" (weights and engine measured there on {at})"
    if cache is not None:
        more = f"{gib(cache - left)} more than that" if cache > left else f"{gib(left - cache)} stay free"
        sums += f"; it gets {gib(cache)} (kv_cache_memory): {more}"
    low, high = found.low.tokens, found.high.tokens if found.high else None
    lines = [sums]
    if found.exact:
        between = f", between {low:,} and {high:,}" if high is not None and low != high else ""
        lines.append(
            f"cache ({found.dtype}): {found.outcome.tokens:,} tokens{between}; "
            f"{found.outcome.requests:.2f} requests of {context:,} tokens at once"
        )
    else:
        most = f" to {high:,}" if high is not None else " or more"
        lines.append(f"cache ({found.dtype}): not all of it is known; {low:,}{most} tokens")
    return Forecast(
        lines=tuple(lines),
        tokens=found.outcome.tokens if found.exact else None,
        low=low,
        high=high,
        cannot_start=found.high is not None and not found.high.starts,
        in_doubt=not found.low.starts,
        exact=cache is not None,
        weights=found.weights,
        least=held + found.overhead.high - found.overhead.total + max(found.paging.needed()) if found.exact else None,
    )
