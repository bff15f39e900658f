"""A LoRA adapter for the tiny model, made on the spot without any library: for real engines and the stand-in."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HIDDEN, LAYERS = 128, 2
KEYS = ("k_proj", "v_proj")  # half as wide: two KV heads of four


def make_tiny_lora(
    folder: Path,
    *,
    rank: int = 8,
    seed: int = 1,
    hidden: int = HIDDEN,
    layers: int = LAYERS,
    modules: Sequence[str] = ("q_proj", "v_proj"),
    **config: Any,
) -> Path:
    """Write an adapter with random weights to ``folder`` and return it; ``config`` goes over adapter_config.json.

    The weights are large, so that what the model says with it is another text than without.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "peft_type": "LORA",
        "base_model_name_or_path": "tiny",
        "r": rank,
        "lora_alpha": 4 * rank,
        "target_modules": list(modules),
        "bias": "none",
        **config,
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings, indent=1) + "\n")
    entries: dict[str, Any] = {}
    data = bytearray()
    rng = random.Random(seed)
    for layer in range(layers):
        for module in modules:
            out = hidden // 2 if module in KEYS else hidden
            for matrix, shape in (("A", (rank, hidden)), ("B", (out, rank))):
                raw = struct.pack(f"<{shape[0] * shape[1]}f", *(rng.uniform(-1, 1) for _ in range(shape[0] * shape[1])))
                name = f"base_model.model.model.layers.{layer}.self_attn.{module}.lora_{matrix}.weight"
                span = [len(data), len(data) + len(raw)]
                entries[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": span}
                data += raw
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    (folder / "adapter_model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(data))
    return folder


def make_tiny_base(folder: Path, *, hidden: int = HIDDEN, layers: int = LAYERS) -> Path:
    """Write what a box has of a model that such adapters are for: config.json, and a header without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
        "max_position_embeddings": 262144,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    shapes: dict[str, list[int]] = {"model.embed_tokens.weight": [512, hidden], "lm_head.weight": [512, hidden]}
    for layer in range(layers):
        part = f"model.layers.{layer}"
        for module, out in (("q_proj", hidden), ("k_proj", hidden // 2), ("v_proj", hidden // 2), ("o_proj", hidden)):
            shapes[f"{part}.self_attn.{module}.weight"] = [out, hidden]
        for module in ("gate_proj", "up_proj"):
            shapes[f"{part}.mlp.{module}.weight"] = [2 * hidden, hidden]
        shapes[f"{part}.mlp.down_proj.weight"] = [hidden, 2 * hidden]
    entries: dict[str, Any] = {}
    at = 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * shape[1]
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    header = json.dumps(entries).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + at)
    return folder
