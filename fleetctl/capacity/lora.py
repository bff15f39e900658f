"""Memory that slots for LoRA adapters take. An estimate: which layers get adapters depends on the model's code.

vLLM sets aside, for each of ``--max-loras`` slots and each adapted matrix, an A of (rank x in) and a B of (out x rank)
in 16 bits (``vllm/lora/layers``); B is divided over the ranks with its matrix, A is not for the matrices that are
divided by columns. The embedding and the output layer have slots too. Experts of a mixture are left out: few families
adapt them.
"""

from __future__ import annotations

from fleetctl.capacity.attention import heads_per_rank
from fleetctl.capacity.shape import Full, Latent, ModelShape, Window

_BYTES = 2


def lora_bytes(shape: ModelShape, slots: int, rank: int, tp: int = 1) -> int:
    """Bytes on one rank for ``slots`` adapters of up to ``rank``, all layers together."""
    if slots <= 0 or rank <= 0:
        return 0
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
        if shape.intermediate and not shape.experts:
            inner = shape.intermediate // tp
            total += 2 * (shape.hidden + inner) + inner + shape.hidden  # gate and up; down
    return total * slots * rank * _BYTES
