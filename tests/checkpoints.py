"""Checkpoints for tests: real files with real headers, and no weights to speak of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from fleetctl.capacity.headers import BITS

Tensors = Mapping[str, tuple[str, list[int]]]


def header(tensors: Tensors) -> bytes:
    """The beginning of a safetensors file: the length of the header and the header."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape) in tensors.items():
        size = -(-prod(shape) * BITS[dtype] // 8)
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


def data_size(tensors: Tensors) -> int:
    return sum(-(-prod(shape) * BITS[dtype] // 8) for dtype, shape in tensors.values())


def write_shard(path: Path, tensors: Tensors) -> None:
    """A whole file, as large as its header says; the weights are a hole in it."""
    start = header(tensors)
    with path.open("wb") as file:
        file.write(start)
        file.truncate(len(start) + data_size(tensors))


def llama(layers: int = 2, hidden: int = 64, kv: int = 32, inner: int = 128, vocabulary: int = 512) -> Tensors:
    """The tensors of a small Llama in BF16."""
    tensors: dict[str, tuple[str, list[int]]] = {
        "model.embed_tokens.weight": ("BF16", [vocabulary, hidden]),
        "lm_head.weight": ("BF16", [vocabulary, hidden]),
        "model.norm.weight": ("BF16", [hidden]),
    }
    for layer in range(layers):
        start = f"model.layers.{layer}"
        tensors |= {
            f"{start}.self_attn.q_proj.weight": ("BF16", [hidden, hidden]),
            f"{start}.self_attn.k_proj.weight": ("BF16", [kv, hidden]),
            f"{start}.self_attn.v_proj.weight": ("BF16", [kv, hidden]),
            f"{start}.self_attn.o_proj.weight": ("BF16", [hidden, hidden]),
            f"{start}.mlp.gate_proj.weight": ("BF16", [inner, hidden]),
            f"{start}.mlp.up_proj.weight": ("BF16", [inner, hidden]),
            f"{start}.mlp.down_proj.weight": ("BF16", [hidden, inner]),
            f"{start}.input_layernorm.weight": ("BF16", [hidden]),
        }
    return tensors


CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
}


def write_model(folder: Path, config: Mapping[str, Any] = CONFIG, tensors: Tensors | None = None) -> Path:
    """A folder with config.json and one file of weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_shard(folder / "model.safetensors", llama() if tensors is None else tensors)
    return folder
