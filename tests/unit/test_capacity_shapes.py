"""config.json of each family: which layers keep what, and what is said of the families that are not known."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from fleetctl.capacity.config import read_shape
from fleetctl.capacity.shape import Compressed, Full, Latent, ModelShape, Part, Ring, State, Window
from fleetctl.errors import SpecError

BASE: dict[str, Any] = {"model_type": "llama", "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64, "hidden_size": 1024}


def shape(**config: Any) -> ModelShape:
    return read_shape(json.dumps({"num_hidden_layers": 12, "vocab_size": 1000, **HEADS, **config}))


def kept(of: ModelShape) -> dict[Any, int]:
    """How many layers keep each kind of cache."""
    return dict(Counter(of.caches))


FULL = Full(4, 64, 64)
GATED = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 16}
DELTA = (Part(2 * 2 * 8 + 4 * 16, 3, 2, grows=True), Part(4, 16 * 8, 2, recurrent=True))

FAMILIES: list[tuple[str, dict[str, Any], dict[Any, int]]] = [
    ("grouped-query", {"model_type": "llama"}, {FULL: 12}),
    (
        "multi-head when KV heads are not named",
        {"model_type": "llama", "num_key_value_heads": None},
        {Full(16, 64, 64): 12},
    ),
    (
        "head size from the hidden size",
        {"model_type": "qwen2", "head_dim": None, "hidden_size": 512},
        {Full(4, 32, 32): 12},
    ),
    ("Falcon with one KV head", {"model_type": "falcon", "multi_query": True}, {Full(1, 64, 64): 12}),
    (
        "Mistral's window in every layer",
        {"model_type": "mistral", "sliding_window": 4096},
        {Window(4, 64, 64, 4096): 12},
    ),
    ("Mistral without a window", {"model_type": "mistral", "sliding_window": None}, {FULL: 12}),
    ("Qwen2's window that is not used", {"model_type": "qwen2", "sliding_window": 131072}, {FULL: 12}),
    (
        "Qwen2's window in the upper layers",
        {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 10},
        {FULL: 10, Window(4, 64, 64, 4096): 2},
    ),
    ("Gemma 2: every other", {"model_type": "gemma2", "sliding_window": 512}, {FULL: 6, Window(4, 64, 64, 512): 6}),
    (
        "Gemma 3: five of six",
        {"model_type": "gemma3_text", "sliding_window": 512},
        {FULL: 2, Window(4, 64, 64, 512): 10},
    ),
    (
        "Gemma 4: other heads where it sees all, and shared caches",
        {
            "model_type": "gemma4_text",
            "sliding_window": 512,
            "global_head_dim": 512,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 2,
            "num_kv_shared_layers": 4,
        },
        {Full(2, 512, 512): 1, Window(4, 64, 64, 512): 7},
    ),
    (
        "Cohere's window does not count itself",
        {"model_type": "cohere2", "sliding_window": 511},
        {FULL: 3, Window(4, 64, 64, 512): 9},
    ),
    (
        "a list of layers counts more than a rule",
        {"model_type": "gemma2", "sliding_window": 9, "layer_types": ["full_attention"] * 11 + ["sliding_attention"]},
        {FULL: 11, Window(4, 64, 64, 9): 1},
    ),
    (
        "Llama 4: chunked attention keeps all",
        {"model_type": "llama4_text", "layer_types": ["chunked_attention"] * 12},
        {FULL: 12},
    ),
    (
        "DeepSeek: one latent vector",
        {"model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64},
        {Latent(576): 12},
    ),
    ("Qwen3-Next: three of four with a state", {"model_type": "qwen3_next", **GATED}, {FULL: 3, State(DELTA): 9}),
    (
        "Granite: Mamba-2",
        {
            "model_type": "granitemoehybrid",
            "layer_types": ["mamba"] * 11 + ["attention"],
            "mamba_n_heads": 8,
            "mamba_d_head": 32,
            "mamba_d_state": 16,
            "mamba_n_groups": 2,
            "mamba_expand": 2,
            "mamba_d_conv": 4,
        },
        {
            FULL: 1,
            State(
                (Part(2048, 3, 2, grows=True, groups=2, group_width=32), Part(8, 512, 2, recurrent=True)), checkpoint=1
            ): 11,
        },
    ),
    (
        "Nemotron-H: letters",
        {
            "model_type": "nemotron_h",
            "hybrid_override_pattern": "MM-M*E",
            "mamba_num_heads": 4,
            "mamba_head_dim": 8,
            "ssm_state_size": 16,
            "n_groups": 1,
        },
        {
            FULL: 1,
            State(
                (Part(32, 3, 2, grows=True, groups=1, group_width=32), Part(4, 128, 4, recurrent=True)), checkpoint=1
            ): 3,
        },
    ),
    (
        "Jamba: one attention layer in eight",
        {"model_type": "jamba", "attn_layer_period": 8, "attn_layer_offset": 4},
        {
            FULL: 1,
            State((Part(2048, 3, 2), Part(2048, 16, 2, recurrent=True))): 11,
        },
    ),
    (
        "LFM2: short convolutions",
        {"model_type": "lfm2", "conv_L_cache": 3, "layer_types": ["conv", "conv", "full_attention"] * 4},
        {FULL: 4, State((Part(1024, 2, 2),)): 8},
    ),
    (
        "Falcon-H1: both in each layer",
        {"model_type": "falcon_h1", "mamba_d_ssm": 256, "mamba_n_heads": 4, "mamba_d_state": 8},
        {
            FULL: 12,
            State(
                (Part(256, 3, 2, grows=True, groups=1, group_width=16), Part(4, 512, 2, recurrent=True)), checkpoint=1
            ): 12,
        },
    ),
]


@pytest.mark.parametrize(("config", "expected"), [one[1:] for one in FAMILIES], ids=[one[0] for one in FAMILIES])
def test_each_family_keeps_what_its_engine_keeps(config: dict[str, Any], expected: dict[Any, int]) -> None:
    read = shape(**config)
    assert kept(read) == expected
    assert read.unknown is None


def test_a_text_model_inside_another_is_found_and_the_encoders_are_named() -> None:
    inner = {"model_type": "qwen3_5_text", "num_hidden_layers": 8, **HEADS, **GATED, "mtp_num_hidden_layers": 1}
    read = read_shape(
        json.dumps({"model_type": "qwen3_5", "text_config": inner, "vision_config": {}, "audio_config": {}})
    )
    assert (read.model_type, len(read.layers)) == ("qwen3_5_text", 8)
    assert read.encoders == ("vision", "audio")
    assert [layer.caches for layer in read.draft] == [(FULL,)]


def test_sparse_attention_of_flash_next_has_a_compressed_cache_and_a_ring_beside_it() -> None:
    more = {"hc_count": 4, "ple_layer_ids": [2], "ngram_size": 3, "ple_conv_kernel_size": 4}
    read = shape(model_type="qwen4_exp_text", indexer_head_dim=128, indexer_compress_ratio=4, **GATED, **more)
    assert read.layers[3].caches == (FULL, Compressed(128, 4), Ring(128, 4))
    assert read.layers[1].caches == (State(DELTA), State((Part(4096, 9, 2, grows=True),), replicated=True))


STRANGE = [
    ({"model_type": "never_heard_of"}, "the family never_heard_of", False),
    ({"model_type": "llama", "is_encoder_decoder": True}, "cross attention", False),
    ({"model_type": "llama", "ngram_size": 3}, "n-gram", False),
    ({"model_type": "glm_moe_dsa", "kv_lora_rank": 512, "index_topk": 2048}, "indexer", True),
    ({"model_type": "deepseek_v4", "compress_ratios": [0, 4, 128] * 4}, "compressed caches", True),
    ({"model_type": "minicpm3", "kv_lora_rank": 256}, "the family minicpm3", True),
]


@pytest.mark.parametrize(("config", "what", "bounded"), STRANGE)
def test_what_is_not_known_is_named_and_bounded_not_guessed(config: dict[str, Any], what: str, bounded: bool) -> None:
    unknown = shape(**config).unknown
    assert unknown is not None
    assert what in unknown.what
    assert unknown.dearest
    assert (unknown.cheapest is not None) == bounded


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ({"quant_method": "modelopt", "kv_cache_scheme": {"type": "float", "num_bits": 8, "dynamic": False}}, "fp8"),
        ({"quant_method": "modelopt_fp4", "quantization": {"kv_cache_quant_algo": "FP8"}}, "fp8"),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "kv_cache_scheme": {"type": "int", "num_bits": 8}}, None),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"type": "float", "num_bits": 8}}, None),
    ],
)
def test_auto_follows_the_kv_dtype_that_the_checkpoint_asks_for(
    quantization: dict[str, Any], expected: str | None
) -> None:
    assert shape(model_type="llama", quantization_config=quantization).checkpoint_kv == expected


WRONG = [
    ("{", "not JSON"),
    ("[]", "not a JSON object"),
    ('"x"', "not a JSON object"),
    ("{}", "model_type is missing"),
    ('{"model_type": "llama"}', "no number of layers"),
    ('{"model_type": 7, "num_hidden_layers": 2}', "model_type is 7, not a word"),
    (json.dumps({"model_type": "llama", "num_hidden_layers": "two"}), "num_hidden_layers is 'two', not a whole number"),
    (json.dumps({"model_type": "llama", "num_hidden_layers": -2}), "num_hidden_layers is -2, not between"),
    (json.dumps({"model_type": "llama", "num_hidden_layers": 10**30, **HEADS}), "num_hidden_layers is 1000"),
    (json.dumps({"model_type": "llama", "num_hidden_layers": 2}), "num_attention_heads"),
    (json.dumps({**BASE, **HEADS, "head_dim": True}), "head_dim is True"),
    (json.dumps({**BASE, **HEADS, "num_key_value_heads": 0}), "attention head"),
    (json.dumps({"model_type": "qwen3_next", "num_hidden_layers": 4, **HEADS}), "linear_num_key_heads is missing"),
    (json.dumps({"model_type": "lfm2", "num_hidden_layers": 4, **HEADS}), "no layer_types"),
    (
        json.dumps({**BASE, "model_type": "gemma2", "num_hidden_layers": 4, **HEADS, "layer_types": ["what"] * 4}),
        "layer_types has what",
    ),
    (
        json.dumps({**BASE, "model_type": "gemma2", "num_hidden_layers": 4, **HEADS, "layer_types": ["mamba"]}),
        "1 entries for 4 layers",
    ),
    (json.dumps({"model_type": "x", "text_config": 5}), "text_config is 5, not an object"),
]


@pytest.mark.parametrize(("text", "said"), WRONG)
def test_a_damaged_config_is_told_with_its_key(text: str, said: str) -> None:
    with pytest.raises(SpecError) as told:
        read_shape(text, "model/config.json")
    assert said in told.value.message
    assert told.value.message.startswith("model/config.json")
