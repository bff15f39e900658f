"""Matrices that adapters are for, from the headers of a model's files: how wide they are on a rank. Pure.

An adapter of rank r has, for a matrix of (out x in), an A of (r x in) and a B of (out x r). vLLM sets memory aside for
each linear layer of the text model, routers and every single expert included (``vllm/lora/model_manager.py`` and
``lora/layers/fused_moe.py``, 0.32.0), whatever the adapters that come have. B is divided over the ranks where the
matrix is divided by columns, A where it is by rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import prod

from fleetctl.capacity.attention import heads_per_rank
from fleetctl.capacity.headers import Tensor
from fleetctl.capacity.shape import Full, ModelShape, Window
from fleetctl.capacity.weights import Part, part_of

_MATRIX = re.compile(r"\.(?:weight|qweight|weight_packed)$|_proj(?:_blocks)?$")
_NOT_LINEAR = re.compile(r"norm|embed|\.A_log|\.D$|rotary|bias")
_BY_ROWS = re.compile(r"\.(?:o_proj|down_proj|out_proj|dense_4h_to_h|c_proj|w2|output_linear|wo)[._]|\.dense\.weight")
_SEVERAL_IN_ONE = (
    (re.compile(r"gate_up_proj|\.input_linear\."), 2),
    (re.compile(r"\.(?:mamba|mixer)\.in_proj\."), 5),
)
"""Several matrices with an A each, in one tensor."""
_COPIED = re.compile(r"q_a_proj|kv_a_proj|\.indexer\.|\.gate\.|\.router\.|shared_expert_gate")
_KEYS_AND_VALUES = re.compile(r"\.(?:k_proj|v_proj)\.")


def adapted_width(tensors: Iterable[Tensor], shape: ModelShape, tp: int = 1, method: str = "") -> int:
    """Sum of the widths of A and B of one adapter of rank 1, all layers together, on a rank of ``tp``.

    Embedding and output layer are in it, which not every family adapts. ``method`` is config.json's quant_method.
    """
    total = 2 * (shape.vocabulary + shape.hidden)
    kept = _kept(shape, tp)
    for tensor in tensors:
        if part_of(tensor.name, len(shape.layers))[0] is not Part.LAYER or len(tensor.shape) < 2:
            continue
        if not _MATRIX.search(tensor.name) or _NOT_LINEAR.search(tensor.name):
            continue
        count, out, into = dimensions(tensor, method)
        into *= next((parts for names, parts in _SEVERAL_IN_ONE if names.search(tensor.name)), 1)
        if _COPIED.search(tensor.name):
            total += count * (into + out)
        elif _BY_ROWS.search(tensor.name):
            total += count * (into // tp + out)
        elif _KEYS_AND_VALUES.search(tensor.name):
            total += count * (into + int(out * kept))
        else:
            total += count * (into + out // tp)
    return total


def dimensions(tensor: Tensor, method: str) -> tuple[int, int, int]:
    """How many matrices a tensor has, and their outputs and inputs before they were packed."""
    *several, out, into = tensor.shape
    if tensor.name.endswith("_blocks") and len(tensor.shape) == 4:  # MXFP4: (experts, out, in / 32, 16)
        return tensor.shape[0], tensor.shape[1], 2 * tensor.shape[2] * tensor.shape[3]
    if "conv1d" in tensor.name:  # a linear layer to vLLM
        return 1, tensor.shape[0], tensor.shape[-1]
    if tensor.name.endswith("qweight"):
        return prod(several), into * (8 if method == "awq" else 1), out * (1 if method == "awq" else 8)
    if tensor.dtype in ("I32", "I64"):
        return prod(several), out, into * 8
    if tensor.dtype == "U8":
        return prod(several), out, into * 2
    return prod(several), out, into


def _kept(shape: ModelShape, tp: int) -> float:
    heads = next((cache.kv_heads for cache in shape.caches if isinstance(cache, Full | Window)), 0)
    return heads_per_rank(heads, tp) / heads if heads else 1 / tp
