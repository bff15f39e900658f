"""Memory that vLLM sets aside for LoRA adapters, a case a line in, bytes by kind of layer out."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from vllm import LLM
from vllm.distributed import cleanup_dist_env_and_memory


def held(value: Any) -> Iterator[torch.Tensor]:
    """Tensors in an attribute that is one, or a tuple or list of them."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from held(one)


def slots(model: torch.nn.Module) -> dict[str, int]:
    """Kind of layer → bytes of its slots."""
    found: Counter[str] = Counter()
    seen = set()
    for module in model.modules():
        for name, value in vars(module).items():
            for one in held(value) if name.endswith("_stacked") else ():
                storage = one.untyped_storage()
                if storage.data_ptr() not in seen:  # experts have views of one tensor
                    seen.add(storage.data_ptr())
                    found[type(module).__name__] += storage.nbytes()
    return dict(found)


def main() -> None:
    for line in sys.stdin:
        case = json.loads(line)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(case["config"]))
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
            tensors = [(name, "BF16", list(tensor.shape)) for name, tensor in model.state_dict().items()]
            engine = LLM(
                model=folder,
                load_format="dummy",
                skip_tokenizer_init=True,
                enforce_eager=True,
                max_model_len=256,
                max_num_seqs=4,
                enable_lora=True,
                max_loras=case["slots"],
                max_lora_rank=case["rank"],
                kv_cache_memory_bytes=1 << 26,
            )
            (told,) = engine.apply_model(slots)
            print("=== " + json.dumps({"bytes": told, "tensors": tensors}), flush=True)
            engine.llm_engine.engine_core.shutdown()
        cleanup_dist_env_and_memory()


if __name__ == "__main__":
    main()
