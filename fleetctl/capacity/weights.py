"""Bytes of weights: by format, by part of the model, and on a rank of each pipeline stage. Pure.

What an engine holds in memory is not always what the files have: kernels repack some formats, and the engine's own line
"Model loading took" is better where there is one. Rules, each an assumption that docs/capacity.md names:

- plain 32-bit and 64-bit matrices are loaded as 16-bit, which is what the engine computes with;
- the output layer is not loaded again where it is the embedding table; a draft head only where it is used;
- matrices are divided over tensor-parallel ranks; vectors and routers are copied, as are the first projections of
  latent attention, and keys and values, or groups of Mamba-2, where there are fewer of them than ranks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from fleetctl.capacity.attention import Launch, added_groups, check_heads, heads_per_rank
from fleetctl.capacity.headers import Tensor
from fleetctl.capacity.pages import stage_of_layers
from fleetctl.capacity.shape import Full, ModelShape, State, Window


class Part(Enum):
    """Where in the model a tensor belongs."""

    LAYER = "layers"
    EMBEDDING = "embedding"
    HEAD = "output layer"
    TABLE = "n-gram table"
    ENCODER = "encoders"
    DRAFT = "draft head"
    REST = "rest"


_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|decoder_layers)\.(\d{1,6})\.")
_ENCODER = re.compile(
    r"(?:^|\.)(?:visual|vision_tower|vision_model|vision_encoder|vision_embed\w*|vit|image_newline|audio_tower"
    r"|audio_model|audio_encoder|speech_\w+|multi_modal_projector|mm_projector|patch_merger|embed_vision|embed_audio)\."
)
_DRAFT = re.compile(r"(?:^|\.)mtp(?:_\w+)?\.")
_TABLE = re.compile(r"ngram_embedding|engram")
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|tok_embeddings|wte|word_embeddings|embeddings|embed_in)\.")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output)\.weight")
_COPIED = re.compile(
    r"(?:q_a_proj|kv_a_proj_with_mqa|kv_a_proj|fused_qkv_a_proj|\.indexer\.|(?:mlp|block_sparse_moe|feed_forward)\.gate\."
    r"|\.router\.|shared_expert_gate)"
)
_KEYS_AND_VALUES = re.compile(r"\.(?:k_proj|v_proj)\.")
_WITH_GROUPS = re.compile(r"\.mamba\.(?:in_proj|conv1d)\.|\.mixer\.(?:in_proj|conv1d)\.")
_SCALES = ("_scale", "_scale_2", "_scale_inv", "scales", "qzeros", "g_idx", "_global_scale", "_zero_point", "_shape")


@dataclass(frozen=True)
class Weights:
    """Weights of a model as one engine loads them."""

    on_disk: int
    """Bytes of all tensors in the files."""
    parts: Mapping[Part, int]
    """Bytes in memory, of all ranks together."""
    formats: Mapping[str, int]
    """Bytes in the files by format: NVFP4, MXFP4, FP8, AWQ, GPTQ, BF16, ..."""
    stages: tuple[int, ...]
    """Bytes on one rank of each pipeline stage."""

    @property
    def loaded(self) -> int:
        """Bytes in memory, where one rank holds all."""
        return sum(self.parts.values())


def part_of(name: str, layers: int) -> tuple[Part, int]:
    """The part of the model a tensor belongs to, and its layer (0 where it has none)."""
    if _ENCODER.search(name):
        return Part.ENCODER, 0
    if _DRAFT.search(name):
        return Part.DRAFT, 0
    if _TABLE.search(name):
        return Part.TABLE, 0
    found = _LAYER.search(name)
    if found:
        place = int(found[1])
        # DeepSeek's kin number the draft head's layers after the model's own.
        return (Part.LAYER, place) if place < layers else (Part.DRAFT, 0)
    if _EMBEDDING.search(name):
        return Part.EMBEDDING, 0
    return (Part.HEAD, 0) if _HEAD.search(name) else (Part.REST, 0)


def format_counts(tensors: Sequence[Tensor], method: str = "") -> dict[str, int]:
    """Bytes by format. ``method`` is the quant_method of config.json, which tells AWQ from GPTQ."""
    scales = {tensor.name: tensor.dtype for tensor in tensors if tensor.name.endswith(_SCALES)}
    counts: Counter[str] = Counter()
    for tensor in tensors:
        counts[_format_of(tensor, scales, method)] += tensor.size
    return dict(counts.most_common())


def _format_of(tensor: Tensor, scales: Mapping[str, str], method: str) -> str:
    stem, _, last = tensor.name.rpartition(".")
    if last in ("qweight", "qzeros", "scales", "g_idx"):
        return {"awq": "AWQ", "gptq": "GPTQ"}.get(method, "AWQ or GPTQ")
    if tensor.dtype == "F4":
        return "FP4"
    if tensor.dtype == "F8_E8M0":  # a type for scales of that format alone
        return "MXFP4"
    if last.endswith(("_blocks", "_scales")) and tensor.dtype == "U8":
        return "MXFP4"
    if last in ("weight", "weight_packed", "weight_scale") and tensor.dtype in ("U8", "F8_E4M3", "F8_E8M0"):
        scale = scales.get(f"{stem}.weight_scale")
        packed = last != "weight_scale" or f"{stem}.weight_scale_2" in scales or f"{stem}.weight_global_scale" in scales
        if tensor.dtype == "U8" or (last == "weight_scale" and packed):
            return "NVFP4" if scale == "F8_E4M3" else "MXFP4" if scale in ("U8", "F8_E8M0") else "4-bit"
    if last in ("weight_packed", "weight_shape") and tensor.dtype in ("I32", "I64"):
        return "INT4"
    return {"F8_E4M3": "FP8", "F8_E5M2": "FP8", "I8": "INT8", "I32": "INT4"}.get(tensor.dtype, tensor.dtype)


def loaded_size(tensor: Tensor) -> int:
    """Bytes in memory of a tensor that is loaded."""
    plain = tensor.name.endswith(".weight") and len(tensor.shape) >= 2
    return tensor.elements * 2 if plain and tensor.dtype in ("F32", "F64") else tensor.size


def weigh(tensors: Iterable[Tensor], shape: ModelShape, launch: Launch, method: str = "") -> Weights:
    """Weights of a model on each rank. Raises SpecError where the heads cannot be divided over the ranks."""
    check_heads(shape, launch)
    held = list(tensors)
    stages = [0.0] * launch.pp
    places = stage_of_layers(len(shape.layers), launch.pp)
    kept, copied = _kept_share(shape, launch.tp), _copied_rows(shape, launch.tp)
    parts: Counter[Part] = Counter()
    for tensor in held:
        part, layer = part_of(tensor.name, len(shape.layers))
        if (part is Part.DRAFT and not launch.spec_tokens) or (part is Part.HEAD and shape.tied):
            continue
        size = loaded_size(tensor)
        parts[part] += size
        rank = size * _share(tensor, part, launch.tp, kept, copied)
        if part is Part.LAYER:
            stages[places[layer]] += rank
        elif part in (Part.HEAD, Part.DRAFT):
            stages[-1] += rank
        else:
            stages[0] += rank
            if part is Part.EMBEDDING and launch.pp > 1 and (shape.tied or launch.spec_tokens):
                stages[-1] += rank
    return Weights(
        on_disk=sum(tensor.size for tensor in held),
        parts=dict(parts),
        formats=format_counts(held, method),
        stages=tuple(round(size) for size in stages),
    )


def _kept_share(shape: ModelShape, tp: int) -> float:
    """Share of the keys' and values' projections that a rank holds."""
    heads = next((cache.kv_heads for cache in shape.caches if isinstance(cache, Full | Window)), 0)
    return heads_per_rank(heads, tp) / heads if heads else 1 / tp


def _copied_rows(shape: ModelShape, tp: int) -> int:
    """Rows of Mamba-2's first projection that are added, so that every rank has a group."""
    parts = (part for cache in shape.caches if isinstance(cache, State) for part in cache.parts)
    return next((added_groups(part, tp) * part.group_width for part in parts if part.groups), 0)


def _share(tensor: Tensor, part: Part, tp: int, kept: float, copied: int) -> float:
    """Share of a tensor that a rank holds."""
    if tp == 1 or len(tensor.shape) < 2 or _COPIED.search(tensor.name):
        return 1.0
    if part is Part.LAYER and _KEYS_AND_VALUES.search(tensor.name):
        return kept
    if part is Part.LAYER and copied and _WITH_GROUPS.search(tensor.name):
        return (1 + copied / tensor.shape[0]) / tp
    return 1 / tp
