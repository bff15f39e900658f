"""One model looked at for several divisions over boxes: the sums, what vLLM would refuse, and the advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fleetctl.capacity.advice import Advice, advise
from fleetctl.capacity.attention import Launch
from fleetctl.capacity.estimate import Estimate, Lora, Room, estimate
from fleetctl.capacity.headers import Tensor
from fleetctl.capacity.logs import EngineLog
from fleetctl.capacity.matrices import adapted_width
from fleetctl.capacity.overhead import Overhead, calibrated
from fleetctl.capacity.shape import ModelShape
from fleetctl.capacity.weights import Weights, weigh
from fleetctl.errors import SpecError


@dataclass(frozen=True)
class Known:
    """What is known of a model beside its shape."""

    tensors: Sequence[Tensor] = ()
    method: str = ""
    """quant_method of config.json."""
    weights: int | None = None
    """Bytes of all weights in memory, as somebody measured them."""
    overhead: int | None = None
    """Bytes on a rank beyond weights and cache, as somebody measured them."""
    log: EngineLog = field(default_factory=EngineLog)
    """What an engine said when it started with this model."""


@dataclass(frozen=True)
class Study:
    """Everything that was found."""

    weights: Weights | None
    """From the files, for the first division; None where there are no files."""
    estimates: tuple[Estimate, ...]
    refused: tuple[tuple[Launch, str], ...]
    advice: Advice


def study(
    shape: ModelShape, known: Known, launches: Sequence[Launch], room: Room, *, lora: Lora, requests: float
) -> Study:
    """Sum up every division. Raises SpecError when none is possible, or the weights are not known."""
    if not known.tensors and known.weights is None and not known.log.weights:
        raise SpecError(
            f"{shape.source}: no safetensors files with it, so the weights are not known",
            hint="give their size with --weights, or an engine's log with --log",
        )
    estimates: list[Estimate] = []
    refusals: list[tuple[Launch, SpecError]] = []
    for launch in launches:
        try:
            estimates.append(
                estimate(
                    shape,
                    launch,
                    room,
                    _weights(shape, known, launch),
                    overhead=_overhead(known, room),
                    lora=_slots(lora, shape, known, launch),
                )
            )
        except SpecError as error:
            refusals.append((launch, error))
    if not estimates:
        raise refusals[0][1]
    return Study(
        weights=weigh(known.tensors, shape, estimates[0].launch, known.method) if known.tensors else None,
        estimates=tuple(estimates),
        refused=tuple((launch, error.message) for launch, error in refusals),
        advice=advise(estimates, requests),
    )


def _weights(shape: ModelShape, known: Known, launch: Launch) -> Weights | int:
    """The best that is known: what somebody measured, what an engine said, what the files say.

    An engine says what each of its ranks took; the ranks of one log are taken together for the whole model.
    """
    if known.weights is not None:
        return known.weights
    return sum(known.log.weights) if known.log.weights else weigh(known.tensors, shape, launch, known.method)


def _slots(lora: Lora, shape: ModelShape, known: Known, launch: Launch) -> Lora:
    """Slots for adapters, by the matrices in the files where there are any."""
    if not lora.slots or not known.tensors:
        return lora
    return replace(lora, width=adapted_width(known.tensors, shape, launch.tp, known.method))


def _overhead(known: Known, room: Room) -> Overhead | None:
    """Measured overhead, where there is one; None: the documented model."""
    if known.overhead is not None:
        return Overhead(0, known.overhead, measured=True)
    log = known.log
    if log.available and log.weights:
        # The memory that the engine had is what its own log says; a log that does not say had this box's.
        requested = round((log.share or room.share) * (log.total or room.memory))
        return calibrated(requested, max(log.weights), min(log.available))
    return None
