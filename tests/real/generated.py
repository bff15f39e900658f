"""Configurations made at random, but from sizes that models have, for fleetctl and vLLM's planner to be asked about."""

from __future__ import annotations

import random
from typing import Any

BASE = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "max_position_embeddings": 1 << 20}


def cases(count: int, seed: int) -> list[dict[str, Any]]:
    """``count`` cases of each kind, the same for the same seed."""
    dice = random.Random(seed)
    return [launch(dice, kind, KINDS[kind](dice)) for kind in KINDS for _ in range(count)]


def launch(dice: random.Random, kind: str, config: dict[str, Any]) -> dict[str, Any]:
    pp = dice.choice([1, 1, 1, 2, 3]) if config["num_hidden_layers"] >= 6 else 1
    memory = [dice.randrange(1 << 24, 1 << 36) for _ in range(pp)]
    return {
        "kind": kind,
        "config": config,
        "tp": dice.choice([1, 1, 2, 4]),
        "pp": pp,
        "kv": dice.choice(["auto", "auto", "fp8"]),
        "context": dice.choice([512, 1000, 4096, 32768, 131072, 262144]),
        "prefix_caching": dice.random() < 0.7,
        "batched_tokens": dice.choice([512, 2048, 8192]),
        "spec_tokens": dice.choice([0, 0, 1, 3]) if config.get("mtp_num_hidden_layers") else 0,
        "draft_layers": config.get("mtp_num_hidden_layers", 0),
        "available": memory,
    }


def heads(dice: random.Random) -> dict[str, Any]:
    kv = dice.choice([1, 2, 4, 8])
    return {
        "num_attention_heads": kv * dice.choice([1, 2, 4, 8]) * (4 // min(kv, 4)),
        "num_key_value_heads": kv,
        "head_dim": dice.choice([32, 64, 128, 256]),
        "num_hidden_layers": dice.randrange(2, 40),
    }


def llama(dice: random.Random) -> dict[str, Any]:
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **BASE, **heads(dice)}


def mistral(dice: random.Random) -> dict[str, Any]:
    window = dice.choice([128, 1000, 4096])
    return {
        "model_type": "mistral",
        "architectures": ["MistralForCausalLM"],
        **BASE,
        **heads(dice),
        "sliding_window": window,
    }


def gemma2(dice: random.Random) -> dict[str, Any]:
    window = dice.choice([512, 4096])
    return {
        "model_type": "gemma2",
        "architectures": ["Gemma2ForCausalLM"],
        **BASE,
        **heads(dice),
        "sliding_window": window,
    }


def gemma3(dice: random.Random) -> dict[str, Any]:
    more = {"sliding_window": dice.choice([512, 1024]), "sliding_window_pattern": dice.choice([2, 6])}
    return {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], **BASE, **heads(dice), **more}


def gpt_oss(dice: random.Random) -> dict[str, Any]:
    more = {"sliding_window": 128, "num_local_experts": 4, "num_experts_per_tok": 2}
    return {"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], **BASE, **heads(dice), **more}


def deepseek(dice: random.Random) -> dict[str, Any]:
    more = {
        "kv_lora_rank": dice.choice([256, 512]),
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "num_hidden_layers": dice.randrange(2, 62),
    }
    return {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], **BASE, **more}


def gated(dice: random.Random, model_type: str, architecture: str) -> dict[str, Any]:
    more = {
        "linear_num_key_heads": dice.choice([4, 8, 16]),
        "linear_num_value_heads": dice.choice([16, 32, 48, 64]),
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": dice.choice([2, 4]),
        "num_hidden_layers": dice.randrange(4, 64),
        "mtp_num_hidden_layers": dice.choice([0, 1]),
    }
    return {"model_type": model_type, "architectures": [architecture], **BASE, **heads(dice), **more}


def qwen3_next(dice: random.Random) -> dict[str, Any]:
    return gated(dice, "qwen3_next", "Qwen3NextForCausalLM")


def qwen3_5(dice: random.Random) -> dict[str, Any]:
    return {
        **gated(dice, "qwen3_5_text", "Qwen3_5ForCausalLM"),
        "mamba_ssm_dtype": dice.choice(["float32", "bfloat16"]),
    }


def granite(dice: random.Random) -> dict[str, Any]:
    count = dice.randrange(4, 40)
    more = {
        "num_hidden_layers": count,
        "layer_types": ["attention" if place % 5 == 3 else "mamba" for place in range(count)],
        "mamba_n_heads": dice.choice([16, 64]),
        "mamba_d_head": 32,
        "mamba_expand": 2,
        "mamba_n_groups": dice.choice([1, 8]),
        "mamba_d_state": dice.choice([64, 128]),
        "num_local_experts": 0,
    }
    more["hidden_size"] = more["mamba_n_heads"] * more["mamba_d_head"] // 2
    named = {"model_type": "granitemoehybrid", "architectures": ["GraniteMoeHybridForCausalLM"]}
    return {**named, **BASE, **heads(dice), **more}


def jamba(dice: random.Random) -> dict[str, Any]:
    more = {"attn_layer_period": 8, "attn_layer_offset": 4, "num_hidden_layers": dice.choice([8, 16, 32])}
    # Jamba has no head_dim of its own.
    sizes = {**heads(dice), "hidden_size": 1024, "num_attention_heads": 16}
    sizes.pop("head_dim")
    return {"model_type": "jamba", "architectures": ["JambaForCausalLM"], **BASE, **sizes, **more}


def lfm2(dice: random.Random) -> dict[str, Any]:
    count = dice.randrange(4, 30)
    more = {
        "num_hidden_layers": count,
        "layer_types": ["full_attention" if place % 3 == 2 else "conv" for place in range(count)],
        "conv_L_cache": 3,
        "conv_dim": 1024,
        "hidden_size": 1024,
    }
    sizes = {**heads(dice), "num_attention_heads": 16}
    sizes.pop("head_dim")
    return {"model_type": "lfm2", "architectures": ["Lfm2ForCausalLM"], **BASE, **sizes, **more}


def nemotron(dice: random.Random) -> dict[str, Any]:
    pattern = "".join(dice.choice("MM-M-*") for _ in range(dice.randrange(6, 50))) + "M*"
    more = {
        "hybrid_override_pattern": pattern,
        "num_hidden_layers": len(pattern),
        "mamba_num_heads": dice.choice([16, 64, 128]),
        "mamba_head_dim": 64,
        "n_groups": 8,
        "ssm_state_size": 128,
        "conv_kernel": 4,
    }
    return {"model_type": "nemotron_h", "architectures": ["NemotronHForCausalLM"], **BASE, **heads(dice), **more}


def falcon_h1(dice: random.Random) -> dict[str, Any]:
    heads_of_state = dice.choice([16, 32])
    more = {
        "mamba_d_ssm": dice.choice([None, heads_of_state * 64]),
        "mamba_n_heads": heads_of_state,
        "mamba_d_head": 64 if dice.random() < 0.5 else "auto",
        "mamba_n_groups": dice.choice([1, 2]),
        "mamba_d_state": dice.choice([128, 256]),
        "mamba_expand": 2,
        "hidden_size": heads_of_state * 32,
    }
    return {"model_type": "falcon_h1", "architectures": ["FalconH1ForCausalLM"], **BASE, **heads(dice), **more}


def cohere2(dice: random.Random) -> dict[str, Any]:
    more = {"sliding_window": dice.choice([511, 4096]), "sliding_window_pattern": 4}
    return {"model_type": "cohere2", "architectures": ["Cohere2ForCausalLM"], **BASE, **heads(dice), **more}


def exaone4(dice: random.Random) -> dict[str, Any]:
    more = {"sliding_window": dice.choice([512, 4096]), "sliding_window_pattern": 4}
    return {"model_type": "exaone4", "architectures": ["Exaone4ForCausalLM"], **BASE, **heads(dice), **more}


def flash_next(dice: random.Random) -> dict[str, Any]:
    more = {
        "mamba_ssm_dtype": "float32",
        "indexer_compress_ratio": 4,
        "indexer_head_dim": 128,
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_budget": 2048,
        "eos_token_id": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000_000, "partial_rotary_factor": 0.25},
        "hc_count": 4,
        "ple_layer_ids": [2],
        "ple_conv_kernel_size": 4,
        "ngram_size": 3,
        "full_attention_interval": 4,
    }
    return {**gated(dice, "qwen4_exp_text", "Qwen4ExpForCausalLM"), **more}


def gemma4(dice: random.Random) -> dict[str, Any]:
    count = dice.randrange(4, 40)
    more = {
        "num_hidden_layers": count,
        "sliding_window": dice.choice([512, 1024]),
        "layer_types": ["full_attention" if place % 6 == 5 else "sliding_attention" for place in range(count - 1)]
        + ["full_attention"],
        "head_dim": 256,
        "global_head_dim": 512,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": dice.choice([1, 2, 4]),
    }
    return {"model_type": "gemma4_text", "architectures": ["Gemma4ForCausalLM"], **BASE, **heads(dice), **more}


KINDS = {
    one.__name__: one
    for one in (
        llama,
        mistral,
        gemma2,
        gemma3,
        gemma4,
        gpt_oss,
        deepseek,
        qwen3_next,
        qwen3_5,
        flash_next,
        granite,
        falcon_h1,
        cohere2,
        exaone4,
        jamba,
        lfm2,
        nemotron,
    )
}
