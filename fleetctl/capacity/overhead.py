"""What an engine takes beyond weights and cache: a documented model, and its calibration. Estimates, all of them.

    overhead = engine + max(forward(batched tokens), sampler(sequences))

- **engine**: the CUDA context, NCCL and whatever does not go through PyTorch. 0.30 GiB in the log of T9; from 0.07 to
  0.55 in the logs below.
- **forward**: the peak of a forward pass over ``--max-num-batched-tokens``. Mixtures of experts: a line through what
  one measured on a GB10 (1.39 GiB at 2,048 tokens, 5.30 at 8,224). Dense models: the inputs and outputs of one block of
  feed-forward layers, 2 x (3 x intermediate / tp + 6 x hidden) bytes a token; 2.06 GiB where a log says 1.97 (O1).
- **sampler**: vLLM's profile also samples once for ``--max-num-seqs`` sequences, after the forward pass, with the
  scores over the whole vocabulary on every rank: 32 bits, and nearly ten times that while they are sorted. 9.6 to 10.3
  times in the logs of nine starts (O2 to O10), with 256 and with 1,024 sequences. It is what counts on small models and
  large ``--max-num-seqs``; with the concurrency that a fleet has by default it is next to nothing.
- **CUDA graphs**: nothing. What vLLM says of them is not usable on boxes with unified memory (it was seen at -20.5 GiB
  and at +5 GiB). Elsewhere, since 0.21, it takes its own estimate off the cache: 0.13 to 2.2 GiB were seen. ``high``
  allows for ``GRAPHS``.

The rows O1 to O10 are in ``bench/data/capacity/overheads.csv`` with their sources. On GB10 the whole was seen from 3.8
to 6.7 GiB, that is 0.68 to 1.20 times this model: ``LOW`` and ``HIGH``. Kernels differ: with ``--moe-backend
flashinfer_b12x`` one mixture took 11.5 GiB more at 8,192 tokens than with marlin (vllm-project/vllm#49476).
One log of one start replaces all of it (``calibrated``).
"""

from __future__ import annotations

from dataclasses import dataclass

from fleetctl.capacity.attention import Launch
from fleetctl.capacity.shape import ModelShape

GIB = 1024**3
ENGINE = int(0.30 * GIB)
EXPERT_FIXED = int(0.0934 * GIB)
EXPERT_PER_TOKEN = int((5.30 - 1.39) * GIB / (8224 - 2048))
SORTING = 9.65
"""Times the 32-bit scores of all sequences over the vocabulary."""
GRAPHS = GIB // 2
LOW, HIGH = 0.65, 1.25
"""How far from the model measured overheads were, with a little to spare."""


@dataclass(frozen=True)
class Overhead:
    """Bytes on one rank beyond weights and cache."""

    engine: int
    activations: int
    measured: bool = False
    """Whether it comes from an engine's own log."""

    @property
    def total(self) -> int:
        return self.engine + self.activations

    @property
    def low(self) -> int:
        """The least that is likely."""
        return self.total if self.measured else int(self.total * LOW)

    @property
    def high(self) -> int:
        """The most that is likely."""
        return self.total if self.measured else int(self.total * HIGH) + GRAPHS


def model_overhead(shape: ModelShape, launch: Launch) -> Overhead:
    """The documented model for a rank."""
    return Overhead(ENGINE, max(_forward(shape, launch), sampler(shape.vocabulary, launch)))


def _forward(shape: ModelShape, launch: Launch) -> int:
    if shape.experts:
        return EXPERT_FIXED + EXPERT_PER_TOKEN * launch.batched_tokens
    return 2 * (3 * shape.intermediate // launch.tp + 6 * shape.hidden) * launch.batched_tokens


def sampler(vocabulary: int, launch: Launch) -> int:
    """Bytes for sampling once for all sequences, the same on every rank."""
    return int(SORTING * 4 * min(launch.sequences, launch.batched_tokens) * vocabulary)


def calibrated(requested: int, weights: int, available: int) -> Overhead:
    """Overhead of a start that was logged: memory that the share gave, less what is accounted for.

    A negative one is possible on boxes with unified memory, where the page cache moves "free"; it is kept as it is.
    """
    return Overhead(0, requested - weights - available, measured=True)
