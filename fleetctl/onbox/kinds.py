"""What kind of machine a box is, and what kind of model a folder holds: by that, measurements are matched."""

import json
import os
import platform
from typing import Any, Dict, Optional

from fleetctl.onbox.facts import folder_size
from fleetctl.onbox.main import Call, op
from fleetctl.onbox.nvidia import query
from fleetctl.onbox.waits import meminfo

GPU_FIELDS = "name,memory.total,driver_version"
FIELDS = (
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "num_experts",
    "vocab_size",
    "max_position_embeddings",
)


@op("box_kind")
def box_kind(call: Call) -> Dict[str, Any]:
    """``gpus``: what nvidia-smi prints of GPU_FIELDS (None: there is none); ``memory``: MemTotal in bytes."""
    return {
        "gpus": query(call, "gpu", GPU_FIELDS),
        "memory": meminfo()["MemTotal"],
        "machine": platform.machine(),
    }


def model_of(folder: str) -> Optional[Dict[str, Any]]:
    """FIELDS and the architecture as config.json has them, its quantization, bytes of weights; None: no such folder."""
    config = _read(folder + "/config.json")
    if config is None:
        return None
    inner = config.get("text_config")
    text = inner if isinstance(inner, dict) else config  # type: Dict[str, Any]
    fields = {name: text.get(name, config.get(name)) for name in FIELDS}
    return {
        "config": {
            name: value
            for name, value in fields.items()
            if isinstance(value, (int, str)) and not isinstance(value, bool)
        },
        "architecture": str((config.get("architectures") or [""])[0]),
        "quantization": _quantization(folder, config),
        "size": folder_size(folder),
    }


def _quantization(folder: str, config: Dict[str, Any]) -> str:
    """The most exact word that its files have for it, in small letters; empty where they have none."""
    words = config.get("quantization_config") or config.get("compression_config")
    if not isinstance(words, dict):
        words = (_read(folder + "/hf_quant_config.json") or {}).get("quantization")
    if not isinstance(words, dict):
        return ""
    for name in ("quant_algo", "format", "quant_method"):
        if isinstance(words.get(name), str) and words[name]:
            return str(words[name]).lower()
    return ""


def _read(path: str) -> Optional[Dict[str, Any]]:
    try:
        with open(path, encoding="utf-8") as source:
            told = json.load(source)
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) else None


@op("model_kind")
def model_kind(call: Call, path: str) -> Optional[Dict[str, Any]]:
    """What kind of model a folder holds, as `model_of` tells it; None where there is no config.json."""
    return model_of(os.path.realpath(path))
