"""Memory that slots for LoRA adapters take.

vLLM sets aside, for each of ``--max-loras`` slots and each adapted matrix, an A of (rank x in) and a B of (out x rank)
in 16 bits (``vllm/lora/layers``), each expert of a mixture included. Which matrices there are is read from the model's
files (``matrices.py``). Without files it is taken from the shape, and is too little for latent attention and states.
"""

from __future__ import annotations

from fleetctl.capacity.attention import heads_per_rank
from fleetctl.capacity.shape import Full, Latent, ModelShape, Window

_BYTES = 2


def lora_bytes(shape: ModelShape, slots: int, rank: int, tp: int = 1, width: int | None = None) -> int:
    """Bytes on one rank for ``slots`` adapters of up to ``rank``, all layers together.

    ``width`` is what the files say of the matrices (``adapted_width``); None: by the shape.
    """
    if slots <= 0 or rank <= 0:
        return 0
    return (_width(shape, tp) if width is None else width) * slots * rank * _BYTES


def _width(shape: ModelShape, tp: int) -> int:
    total = 2 * (shape.vocabulary + shape.hidden)  # embedding and output layer
    for layer in shape.layers:
        for cache in layer.caches:
            if isinstance(cache, Full | Window):
                queries = shape.heads * cache.key_dim // tp
                kept = heads_per_rank(cache.kv_heads, tp) * cache.key_dim
                total += 3 * shape.hidden + queries + 2 * kept  # q, k and v: A whole, B divided
                total += queries + shape.hidden  # o: A divided, B whole
            elif isinstance(cache, Latent):
                total += 4 * shape.hidden + 2 * cache.width
        inner = ((shape.experts and shape.expert_intermediate) or shape.intermediate) // tp
        if inner:
            one = 2 * (shape.hidden + inner) + inner + shape.hidden  # gate and up; down
            total += one * max(shape.experts, 1)
    return total
