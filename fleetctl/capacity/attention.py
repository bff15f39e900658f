"""What each layer's cache is on one rank: its page in bytes, the tokens in a page, and the blocks a request holds.

Sources (vLLM 0.32.0): ``v1/kv_cache_interface.py`` (the specs and ``max_memory_usage_bytes`` of each),
``platforms/interface.py`` (``_align_hybrid_block_size``), ``models/qwen4_exp/common/qsa_cache.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from fleetctl.capacity.kvdtype import known_dtype, latent_bytes, side_bytes
from fleetctl.capacity.shape import Cache, Compressed, Full, Latent, Layer, ModelShape, Part, Ring, State, Window
from fleetctl.errors import SpecError


@dataclass(frozen=True)
class Backend:
    """Blocks of the engine's attention kernels, in tokens."""

    block: int = 16
    """--block-size when nothing is said."""
    kernel: int = 16
    """What the kernels' blocks are multiples of."""
    latent_block: int | None = None
    """Block for latent attention; None: the same."""


CUDA = Backend()
CPU = Backend(block=128, kernel=32, latent_block=16)
_STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Launch:
    """How an engine is run, as far as its cache is concerned. Raises SpecError for what cannot be."""

    context: int
    """--max-model-len"""
    tp: int = 1
    pp: int = 1
    kv: str = "auto"
    """--kv-cache-dtype"""
    state: str = "auto"
    """--mamba-ssm-cache-dtype: auto, float32, bfloat16 or float16"""
    spec_tokens: int = 0
    """Speculative tokens of the model's own draft head (MTP); 0: not used."""
    prefix_caching: bool = True
    batched_tokens: int = 8192
    """--max-num-batched-tokens"""
    sequences: int = 256
    """--max-num-seqs"""
    batches: int = 2
    """Batches under way at once: 2 with asynchronous scheduling, which is the default."""
    block: int | None = None
    """--block-size"""
    backend: Backend = CUDA

    def __post_init__(self) -> None:
        known_dtype(self.kv)
        if self.state != "auto" and self.state not in _STATE_BYTES:
            raise SpecError(f"state dtype {self.state} is not known", hint=f"known: auto, {', '.join(_STATE_BYTES)}")
        for name, value, least, most in (
            ("context", self.context, 1, 2**31),
            ("tensor-parallel size", self.tp, 1, 4096),
            ("pipeline-parallel size", self.pp, 1, 4096),
            ("speculative tokens", self.spec_tokens, 0, 1024),
            ("batched tokens", self.batched_tokens, 1, 2**31),
            ("sequences", self.sequences, 1, 2**31),
            ("block size", self.block if self.block is not None else 16, 1, 2**20),
        ):
            if not least <= value <= most:
                raise SpecError(f"{name} {value} is not between {least:,} and {most:,}")

    @property
    def ranks(self) -> int:
        return self.tp * self.pp


class Kind(Enum):
    """How blocks of a cache are used; only caches of the same kind can share a group."""

    FULL = "full"
    WINDOW = "window"
    STATE = "state"
    RING = "ring"


@dataclass(frozen=True)
class Spec:
    """One layer's cache on one rank. Two layers with equal specs are the same to the engine."""

    kind: Kind
    cache: Cache
    block: int
    """Tokens in a page."""
    page: int
    """Bytes of a page."""
    blocks: int
    """Blocks that one request of full context holds."""
    movable: bool = True
    """Whether the page may be padded to any size (a latent vector's rows may not)."""


def dtype_of(shape: ModelShape, launch: Launch) -> str:
    """The KV dtype that is used; ``auto`` follows the checkpoint."""
    wanted = known_dtype(launch.kv)
    return shape.checkpoint_kv if wanted == "auto" and shape.checkpoint_kv else wanted


def token_bytes(cache: Cache, shape: ModelShape, launch: Launch) -> float:
    """Bytes on one rank that one more token costs in this cache, before pages are rounded; 0 for a state."""
    dtype = dtype_of(shape, launch)
    if isinstance(cache, Full | Window):
        heads = heads_per_rank(cache.kv_heads, launch.tp)
        model = shape.dtype_bytes
        return heads * (side_bytes(dtype, cache.key_dim, model) + side_bytes(dtype, cache.value_dim, model))
    if isinstance(cache, Latent):
        return latent_bytes(dtype, cache.width, shape.dtype_bytes)
    return 2 * cache.width / cache.ratio if isinstance(cache, Compressed) else 0


def check_heads(shape: ModelShape, launch: Launch) -> None:
    """Raises SpecError where vLLM would refuse to divide the attention heads over the ranks."""
    if shape.heads and shape.heads % launch.tp:
        raise SpecError(
            f"{shape.heads} attention heads cannot be divided over {launch.tp} ranks",
            hint="--tp must divide the number of attention heads",
        )


def heads_per_rank(kv_heads: int, tp: int) -> int:
    """KV heads on a rank: divided while there are enough, then copied. SpecError where vLLM would refuse."""
    if max(kv_heads, tp) % min(kv_heads, tp):
        raise SpecError(
            f"{kv_heads} KV heads cannot be divided over {tp} ranks", hint="one must be a multiple of the other"
        )
    return max(1, kv_heads // tp)


def state_bytes(state: State, launch: Launch) -> int:
    """Bytes of one request's state on one rank."""
    tp = 1 if state.replicated else launch.tp
    return sum(_part_bytes(part, tp, launch) for part in state.parts)


def _part_bytes(part: Part, tp: int, launch: Launch) -> int:
    width = part.width + part.group_width * max(part.groups + added_groups(part, tp), 0)
    if width % tp:
        raise SpecError(f"a state of width {width} cannot be divided over {tp} ranks", hint="use another --tp")
    each = _STATE_BYTES.get(launch.state, part.bytes) if part.recurrent else part.bytes
    return width // tp * (part.rows + (launch.spec_tokens if part.grows else 0)) * each


def added_groups(part: Part, tp: int) -> int:
    """Groups that vLLM adds where they do not divide, so that every rank has one."""
    return tp - part.groups if part.groups % tp else 0


def block_size(shape: ModelShape, launch: Launch) -> int:
    """Tokens in a block of the attention layers: grown until a page is as large as a request's state."""
    backend = launch.backend
    latent = any(isinstance(cache, Latent) for cache in shape.caches)
    usual = (backend.latent_block if latent else None) or backend.block
    block = launch.block or usual
    states = [state_bytes(cache, launch) for cache in shape.caches if isinstance(cache, State)]
    first = next((cache for cache in shape.caches if isinstance(cache, Full | Latent)), None)
    if not states or first is None or not max(states):
        return block
    step = max(backend.kernel, block, 128 if latent else 0)
    per_token = int(token_bytes(first, shape, launch))
    grown = step * -(-max(states) // (step * per_token))
    grown = backend.kernel * -(-grown // backend.kernel)
    return max(block, grown)


def specs(shape: ModelShape, launch: Launch, layers: Sequence[Layer]) -> list[list[Spec]]:
    """The caches of each layer, paged. Raises SpecError where vLLM would refuse the division over ranks."""
    check_heads(shape, launch)
    block = block_size(shape, launch)
    first = next((cache for cache in shape.caches if isinstance(cache, Full | Latent)), None)
    # States are padded to a page of the attention layers, so that both can share blocks.
    padded = int(token_bytes(first, shape, launch)) * block if first is not None else 0
    made: dict[Cache, Spec] = {}
    for layer in layers:
        for cache in layer.caches:
            if cache not in made:
                made[cache] = _spec(cache, shape, launch, block, padded)
    return [[made[cache] for cache in layer.caches] for layer in layers]


def _spec(cache: Cache, shape: ModelShape, launch: Launch, block: int, padded: int) -> Spec:
    context = launch.context
    if isinstance(cache, State):
        kept = 1 + launch.spec_tokens + ((1 + cache.checkpoint) if launch.prefix_caching else 0)
        span = block if launch.prefix_caching else context
        return Spec(Kind.STATE, cache, span, max(padded, state_bytes(cache, launch)), kept)
    if isinstance(cache, Ring):
        capacity = cache.ratio * -(-(cache.ratio + launch.spec_tokens) // cache.ratio)
        return Spec(Kind.RING, cache, capacity, capacity * 2 * cache.width, 1)
    if isinstance(cache, Compressed):
        return Spec(Kind.FULL, cache, block, block // cache.ratio * 2 * cache.width, -(-context // block), False)
    page = int(token_bytes(cache, shape, launch)) * block
    if isinstance(cache, Window):
        held = min(cache.window - 1 + launch.batches * launch.batched_tokens, context)
        return Spec(Kind.WINDOW, cache, block, page, -(-held // block) + 1)
    return Spec(Kind.FULL, cache, block, page, -(-context // block), not isinstance(cache, Latent))
