"""vLLM's own planner on given configurations: run by the engine's Python, a case a line in, what it plans a line out.

Everything that decides is vLLM's: its reading of config.json, its shapes of states, its alignment of blocks, its groups
and its figures. Only the list of layers is put together here, as ``Attention.get_kv_cache_spec`` and its kin do it.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"

import torch
import vllm.config.vllm as vllm_config_module
from vllm.config.cache import CacheConfig
from vllm.distributed.utils import get_pp_indices
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator
from vllm.model_executor.models import ModelRegistry
from vllm.platforms.interface import Platform
from vllm.transformers_utils.config import get_config, get_hf_text_config
from vllm.transformers_utils.model_arch_config_convertor import (
    MODEL_ARCH_CONFIG_CONVERTORS,
    ModelArchConfigConvertorBase,
)
from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import (
    CircularBufferSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

logging.disable(logging.CRITICAL)

STATE_MODELS = {
    "qwen3_next": ("qwen3_next", "Qwen3NextForCausalLM"),
    # Its module wants torchvision, which the lab's engine does not have; its shapes are those of its elder.
    "qwen3_5_text": ("qwen3_next", "Qwen3NextForCausalLM"),
    "granitemoehybrid": ("granitemoehybrid", "GraniteMoeHybridForCausalLM"),
    "jamba": ("jamba", "JambaForCausalLM"),
    "lfm2": ("lfm2", "Lfm2ForCausalLM"),
    "nemotron_h": ("nemotron_h", "NemotronHForCausalLM"),
    "falcon_h1": ("falcon_h1", "FalconH1ForCausalLM"),
}
PACKED = ("qwen4_exp_text",)
MAMBA_2 = ("granitemoehybrid", "nemotron_h", "falcon_h1")
BOTH = ("falcon_h1",)
"""Families with a state and attention in every layer."""


class Kernels:
    """A backend whose blocks are multiples of 16, as those of CUDA are."""

    @staticmethod
    def get_supported_kernel_block_sizes(spec: Any = None) -> list[Any]:
        return [MultipleOf(16)]

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        return spec


def plan(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What vLLM plans for one case."""
    config_file = folder / "config.json"
    config_file.write_text(json.dumps(case["config"]))
    hf = get_config(folder, trust_remote_code=False)
    text = get_hf_text_config(hf)
    convertor = MODEL_ARCH_CONFIG_CONVERTORS.get(hf.model_type, ModelArchConfigConvertorBase)
    arch = convertor(hf, text).convert()
    tp, pp, spec_tokens = case["tp"], case["pp"], case["spec_tokens"]
    mla = arch.is_deepseek_mla
    kv_heads = 1 if mla else max(1, arch.total_num_kv_heads // tp)
    cache = CacheConfig(block_size=16, cache_dtype=case["kv"], enable_prefix_caching=case["prefix_caching"])
    cache.block_size = 16
    # Models whose pages differ in size declare a layout with blocks outermost.
    layout = KVCacheLayout.BLHNC if text.model_type in PACKED else KVCacheLayout.LBNHC
    with patch.object(CacheConfig, "get_resolved_kv_cache_layout", lambda self: layout):
        vllm = SimpleNamespace(
            cache_config=cache,
            model_config=SimpleNamespace(
                dtype=torch.bfloat16, use_mla=mla, hf_config=hf, hf_text_config=text, architecture="x",
                max_model_len=case["context"], original_max_model_len=case["context"],
                get_num_kv_heads=lambda parallel: kv_heads, get_head_size=lambda: arch.head_size,
            ),
            parallel_config=SimpleNamespace(
                tensor_parallel_size=tp, pipeline_parallel_size=pp, decode_context_parallel_size=1
            ),
            scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False, enable_chunked_prefill=True),
            attention_config=SimpleNamespace(hisparse_config=None),
            speculative_config=SimpleNamespace(
                num_speculative_tokens=spec_tokens, use_eagle=lambda: False, use_eagle_block_drop=lambda: False
            )
            if spec_tokens
            else None,
            num_speculative_tokens=spec_tokens,
            num_prefill_lookahead_tokens=0,
            max_in_flight_tokens=2 * case["batched_tokens"],
        )  # fmt: skip
        register_all_kvcache_specs(vllm)
        specs = layer_specs(case, arch, text, vllm)
        count = len(specs)
        ranges = [get_pp_indices(arch.total_num_hidden_layers, rank, pp) for rank in range(pp)]
        if count > arch.total_num_hidden_layers:  # a draft head stands on the last stage
            ranges[-1] = (ranges[-1][0], count)
        workers = [
            {f"l{place}.{part}": spec for place in range(*bounds) for part, spec in enumerate(specs[place])}
            for bounds in ranges
        ]
        try:
            configs = kv_cache_utils.get_kv_cache_configs(vllm, workers, case["available"])
        except ValueError as error:
            return {"starts": False, "said": str(error)[:200], "block": cache.block_size}
        tokens, concurrency = kv_cache_utils.get_kv_cache_capacity(vllm, configs[0])
        return {
            "starts": True,
            "tokens": tokens,
            "concurrency": concurrency,
            "blocks": configs[0].num_blocks,
            "block": cache.block_size,
        }


def layer_specs(case: dict[str, Any], arch: Any, text: Any, vllm: Any) -> list[list[Any]]:
    """The specs of each layer, the draft head's last."""
    cache, tp = vllm.cache_config, case["tp"]
    dtype = torch.bfloat16 if case["kv"] == "auto" else STR_DTYPE_TO_TORCH_DTYPE[case["kv"]]
    model_type = text.model_type
    count = arch.total_num_hidden_layers
    kinds = list(getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None) or [])
    if not kinds:
        kinds = ["sliding_attention" if getattr(text, "sliding_window", None) else "full_attention"] * count
    state = align(model_type, text, vllm) if model_type in STATE_MODELS or model_type in PACKED else None

    def attention(place: int, kind: type[Any] = FullAttentionSpec, **more: Any) -> Any:
        here = arch[place]
        heads = max(1, here.total_num_kv_heads // tp)
        return kind(block_size=cache.block_size, num_kv_heads=heads, head_size=here.head_size, dtype=dtype, **more)

    def full(place: int) -> list[Any]:
        if arch.is_deepseek_mla:
            width, named = arch.head_size, case["kv"]
            return [
                MLAAttentionSpec(
                    block_size=cache.block_size, num_kv_heads=1, head_size=width, dtype=dtype, cache_dtype_str=named
                )
            ]
        return [attention(place), *(indexer(text, vllm) if model_type in PACKED else [])]

    def one(place: int, kind: str) -> list[Any]:
        if model_type in BOTH:
            return [state, *full(place)]
        if kind in ("mlp", "moe"):
            return []
        if kind in ("linear_attention", "mamba", "conv"):
            beside = (
                [short_convolution(text, vllm)] if place + 1 in (getattr(text, "ple_layer_ids", None) or ()) else []
            )
            return [state, *beside]
        if kind == "sliding_attention":
            # Cohere's own attention counts the token itself, beside its window.
            window = text.sliding_window + (model_type == "cohere2")
            return [attention(place, SlidingWindowSpec, sliding_window=window)]
        return full(place)

    drafts = case["draft_layers"] if case["spec_tokens"] else 0
    return [one(place, kind) for place, kind in enumerate(kinds[:count])] + [full(count - 1) for _ in range(drafts)]


def indexer(text: Any, vllm: Any) -> list[Any]:
    """The caches beside sparse attention, as ``models/qwen4_exp/common/qsa_cache.py`` makes them."""
    ratio, width = text.indexer_compress_ratio, text.indexer_head_dim
    capacity = ratio * -(-(ratio + vllm.num_speculative_tokens) // ratio)
    common = {"num_kv_heads": 1, "head_size": width, "dtype": torch.bfloat16}
    return [
        MLAAttentionSpec(block_size=vllm.cache_config.block_size, tokens_per_state=ratio, **common),
        CircularBufferSpec(block_size=capacity, head_size_v=0, **common),
    ]


def short_convolution(text: Any, vllm: Any, *, padded: bool = True) -> Any:
    """The state beside the n-gram embedding, as ``models/qwen4_exp/nvidia/ple_layer.py`` makes it."""
    rows = (text.ple_conv_kernel_size - 1) * text.ngram_size
    shapes = MambaStateShapeCalculator.short_conv_state_shape(
        1, text.hidden_size * text.hc_count, rows + 1, vllm.num_speculative_tokens
    )
    return mamba_spec(vllm, shapes, (torch.bfloat16,), padded=padded, tp_replicated=True)


def gated_delta_net(text: Any, vllm: Any, *, padded: bool = True) -> Any:
    shapes = MambaStateShapeCalculator.gated_delta_net_state_shape(
        vllm.parallel_config.tensor_parallel_size, text.linear_num_key_heads, text.linear_num_value_heads,
        text.linear_key_head_dim, text.linear_value_head_dim, text.linear_conv_kernel_dim, vllm.num_speculative_tokens,
    )  # fmt: skip
    return mamba_spec(vllm, shapes, (torch.bfloat16, torch.float32), padded=padded)


def mamba_spec(vllm: Any, shapes: Any, dtypes: Any, *, padded: bool = True, **more: Any) -> Any:
    cache = vllm.cache_config
    return MambaSpec(
        shapes=tuple(shapes),
        dtypes=tuple(dtypes),
        block_size=cache.block_size if cache.enable_prefix_caching else vllm.model_config.max_model_len,
        page_size_padded=cache.mamba_page_size_padded if padded else None,
        mamba_cache_mode=cache.mamba_cache_mode,
        num_speculative_blocks=vllm.num_speculative_tokens,
        **more,
    )


def align(model_type: str, text: Any, vllm: Any) -> Any:
    """The state of a family, with blocks aligned to it, by vLLM's own code for both."""
    cache = vllm.cache_config
    own = vllm.model_config.hf_config.architectures[0]
    updater = importlib.import_module("vllm.model_executor.models.config").MODELS_CONFIG_MAP.get(own)
    if updater is not None and model_type not in PACKED:
        updater.verify_and_update_config(vllm)
    cache.mamba_cache_mode = "align" if cache.enable_prefix_caching else "none"
    if model_type in PACKED:
        both = (gated_delta_net(text, vllm, padded=False), short_convolution(text, vllm, padded=False))
        model: Any = SimpleNamespace(get_mamba_specs_from_config=lambda config: both)
    else:
        module, name = STATE_MODELS[model_type]
        model = getattr(importlib.import_module(f"vllm.model_executor.models.{module}"), name)
    with (
        patch.object(ModelRegistry, "resolve_model_cls", lambda *a, **k: (model, None)),
        patch.object(Platform, "_find_non_ssm_backends", classmethod(lambda cls, config: [Kernels])),
        patch.object(vllm_config_module, "set_current_vllm_config", lambda *a, **k: nullcontext()),
    ):
        Platform._align_hybrid_block_size(vllm, Kernels)
    if model_type in PACKED:
        return gated_delta_net(text, vllm)
    shapes, dtypes = model.get_mamba_state_shape_from_config(vllm), model.get_mamba_state_dtype_from_config(vllm)
    return mamba_spec(vllm, shapes, dtypes, num_prefill_checkpoint_blocks=int(model_type in MAMBA_2))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for line in sys.stdin:
            try:
                answer = plan(json.loads(line), Path(folder))
            except Exception as error:  # what vLLM itself refuses is an answer too
                answer = {"error": f"{type(error).__name__}: {error}"[:300]}
            print(json.dumps(answer), flush=True)
