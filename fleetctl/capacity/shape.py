"""What a model is, as far as memory is concerned: typed values read from its config.json. All counts are of the whole
model, before it is divided among ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True)
class Full:
    """Full attention: keys and values of every token, for each KV head (MHA, GQA, MQA)."""

    kv_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True)
class Window:
    """Sliding-window attention: keys and values of the last ``window`` tokens."""

    kv_heads: int
    key_dim: int
    value_dim: int
    window: int


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: one vector of ``width`` numbers per token (kv_lora_rank + qk_rope_head_dim)."""

    width: int


@dataclass(frozen=True)
class Compressed:
    """One vector of ``width`` 2-byte numbers for every ``ratio`` tokens, whatever the KV dtype (a sparse indexer)."""

    width: int
    ratio: int


@dataclass(frozen=True)
class Ring:
    """The vectors of a group of ``ratio`` tokens that is still open: a fixed piece for each request."""

    width: int
    ratio: int


@dataclass(frozen=True)
class Part:
    """One array of a state: (``width`` + ``group_width`` x groups) / tp by ``rows``, of ``bytes`` each."""

    width: int
    rows: int
    bytes: int
    grows: bool = False
    """Whether it has a row more for each speculative token."""
    groups: int = 0
    """Groups that are copied until every rank has one; each is ``group_width`` wide."""
    group_width: int = 0
    recurrent: bool = False
    """Whether it is the state proper, whose type --mamba-ssm-cache-dtype sets."""


@dataclass(frozen=True)
class State:
    """Linear attention, Mamba or a short convolution: a fixed state for each request instead of a cache per token."""

    parts: tuple[Part, ...]
    checkpoint: int = 0
    """Blocks more that prefix caching keeps for it (one for Mamba-2 in vLLM)."""
    replicated: bool = False
    """Whether every rank holds all of it."""


Cache: TypeAlias = Full | Window | Latent | Compressed | Ring | State


@dataclass(frozen=True)
class Layer:
    """What one layer keeps; nothing for a layer without attention, or one that shares another's cache."""

    caches: tuple[Cache, ...] = ()


@dataclass(frozen=True)
class Unknown:
    """Something in the configuration that fleetctl does not know: the memory then has bounds, not a value."""

    what: str
    dearest: tuple[Layer, ...]
    """Layers with the most memory per token that this may mean."""
    cheapest: tuple[Layer, ...] | None
    """Layers with the least; None: it may be next to nothing."""


@dataclass(frozen=True)
class ModelShape:
    """A language model as its config.json describes it."""

    source: str
    model_type: str
    layers: tuple[Layer, ...]
    context: int | None
    """Longest context in tokens (max_position_embeddings); None: the file does not say."""
    hidden: int
    intermediate: int
    heads: int
    vocabulary: int
    experts: int = 0
    expert_intermediate: int = 0
    experts_per_token: int = 0
    dtype_bytes: int = 2
    """Bytes of the numbers that the engine computes with; a 32-bit checkpoint is loaded as 16-bit."""
    tied: bool = False
    """Whether the output layer is the embedding table."""
    draft: tuple[Layer, ...] = ()
    """Layers of the model's own draft head (MTP); loaded when speculative tokens are asked for."""
    checkpoint_kv: str | None = None
    """KV dtype that the checkpoint itself asks for, which ``auto`` follows."""
    encoders: tuple[str, ...] = ()
    """Parts beside the text model: vision, audio."""
    block_outermost: bool = False
    """Whether the engine packs pages of several sizes side by side into one block."""
    unknown: Unknown | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def caches(self) -> tuple[Cache, ...]:
        return tuple(cache for layer in self.layers for cache in layer.caches)
