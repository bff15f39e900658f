"""Parameters of vLLM's models on one rank of several, a case a line in, bytes and tensors out. Run by its own Python.

The model is built as the first of ``tp`` ranks builds it, and nothing is loaded: that is known before the CPU's kernels
pack the weights in their own way. The tensors are those of transformers' model of the same configuration.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from vllm import LLM
from vllm.distributed import cleanup_dist_env_and_memory, parallel_state
from vllm.model_executor.model_loader import base_loader

build = base_loader.initialize_model


class BuiltError(Exception):
    """The model is there; nothing more is wanted. Its one argument: bytes of its parameters."""


def on_one_rank(tp: int) -> Any:
    def initialize(*words: Any, **named: Any) -> Any:
        parallel_state.get_tp_group().world_size = tp
        model = build(*words, **named)
        raise BuiltError(sum(one.numel() * one.element_size() for one in model.parameters()))

    return initialize


def main() -> None:
    for line in sys.stdin:
        case = json.loads(line)
        base_loader.initialize_model = on_one_rank(case["tp"])
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(case["config"]))
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
            tensors = [(name, "BF16", list(tensor.shape)) for name, tensor in model.state_dict().items()]
            try:
                LLM(
                    model=folder,
                    load_format="dummy",
                    skip_tokenizer_init=True,
                    enforce_eager=True,
                    max_model_len=256,
                    kv_cache_memory_bytes=1 << 26,
                )
            except BuiltError as built:
                print("=== " + json.dumps({"bytes": built.args[0], "tensors": tensors}), flush=True)
        cleanup_dist_env_and_memory()


if __name__ == "__main__":
    main()
