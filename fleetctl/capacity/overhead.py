"""What an engine takes beyond weights and cache: a documented model, and its calibration. Estimates, all of them.

    overhead = engine + activations(batched tokens) + CUDA graphs

- **engine**: the CUDA context, NCCL and whatever does not go through PyTorch. 0.30 GiB in the log of T9.
- **activations**: the peak of a forward pass over ``--max-num-batched-tokens``. Mixtures of experts: a line through
  what one measured on a GB10 (1.39 GiB at 2,048 tokens, 5.30 at 8,224). Dense models: the inputs and outputs of one
  block of feed-forward layers, 2 x (3 x intermediate / tp + 6 x hidden) bytes a token, which gives T9's 1.26 GiB at
  8,192 tokens within a fifth; and the scores over the vocabulary for the sequences that run at once, 32 bits, twice.
- **graphs**: nothing. What vLLM says of them is not usable on boxes with unified memory (it was seen at -20.5 GiB and
  at +5 GiB), and the total below has them in it.

On GB10 the sum of the three was seen from 3.8 to 6.7 GiB, that is 0.68 to 1.20 times this model: ``LOW`` and ``HIGH``.
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
DEFAULT_SEQUENCES = 256
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
        return self.total if self.measured else int(self.total * HIGH)


def model_overhead(shape: ModelShape, launch: Launch, sequences: int = DEFAULT_SEQUENCES) -> Overhead:
    """The documented model for a rank. ``sequences`` is --max-num-seqs."""
    if shape.experts:
        return Overhead(ENGINE, EXPERT_FIXED + EXPERT_PER_TOKEN * launch.batched_tokens)
    per_token = 2 * (3 * shape.intermediate // launch.tp + 6 * shape.hidden)
    scores = 2 * 4 * min(sequences, launch.batched_tokens) * shape.vocabulary // launch.tp
    return Overhead(ENGINE, per_token * launch.batched_tokens + scores)


def calibrated(requested: int, weights: int, available: int) -> Overhead:
    """Overhead of a start that was logged: memory that the share gave, less what is accounted for.

    A negative one is possible on boxes with unified memory, where the page cache moves "free"; it is kept as it is.
    """
    return Overhead(0, requested - weights - available, measured=True)
