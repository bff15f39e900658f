"""Which families of models fleetctl knows. A family outside these lists gets bounds, not a value.

The lists follow the registry of vLLM 0.32.0: ``PLAIN`` are decoders whose layers keep keys and values of every token,
or of a window, and nothing else; ``LATENT`` is vLLM's own list of families with latent attention (``is_deepseek_mla``).
"""

from __future__ import annotations

PLAIN = frozenset((
    "afmoe", "apertus", "aquila", "arcee", "baichuan", "bloom", "cohere", "cohere2", "commandr", "cwm", "deepseek",
    "dots1", "ernie4_5", "ernie4_5_moe", "exaone", "exaone4", "exaone_moe", "falcon", "flex_olmo", "gemma", "gemma2",
    "gemma3", "gemma3_text", "gemma3n_text", "gemma4", "gemma4_text", "glm", "glm4", "glm4_moe", "glm4v_moe_text",
    "glm4v_text", "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss", "gptj", "granite", "granitemoe", "granitemoeshared",
    "grok-1", "helium", "hunyuan", "hunyuan_v1_dense", "hunyuan_v1_moe", "internlm", "internlm2", "internlm3",
    "jais2", "llama", "llama4", "llama4_text", "mellum", "minicpm", "minicpmv", "minimax_m2", "ministral",
    "ministral3", "mistral", "mistral3", "mixtral", "nanochat", "nemotron", "olmo", "olmo2", "olmo3", "olmoe", "opt",
    "orion", "persimmon", "phi", "phi3", "phi4mm", "phimoe", "qwen", "qwen2", "qwen2_5_vl", "qwen2_5_vl_text",
    "qwen2_moe", "qwen2_vl", "qwen2_vl_text", "qwen3", "qwen3_moe", "qwen3_vl_moe_text", "qwen3_vl_text", "seed_oss",
    "smollm3", "solar", "solar_open", "stablelm", "starcoder2", "vaultgemma", "youtu",
))  # fmt: skip
LATENT = frozenset((
    "axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_k2", "kimi_linear", "longcat_flash",
    "pangu_ultra_moe",
))  # fmt: skip
SPARSE_LATENT = frozenset({"deepseek_v32", "glm_moe_dsa"})
"""Latent attention with an indexer beside it, whose cache depends on kernels and on which layers share it."""
ENGINE_SPLIT_LAYERS = {"longcat_flash": 2}
"""Attention layers in each layer that the file counts."""

WRAPPERS = ("text_config", "llm_config", "language_config", "language_model_config", "thinker_config")
"""Where a model of several parts keeps its text model."""
ENCODERS = {
    "vision_config": "vision",
    "vit_config": "vision",
    "visual": "vision",
    "vision_tower_config": "vision",
    "audio_config": "audio",
    "encoder_config": "encoder",
    "speech_config": "audio",
}
STRANGE_KEYS = (
    ("is_encoder_decoder", "a cache of the encoder's output (cross attention)"),
    ("cross_attention_layers", "cross-attention layers"),
    ("compress_ratios", "compressed caches (compress_ratios)"),
    ("compress_rates", "compressed caches (compress_rates)"),
    ("index_topk", "the cache of a sparse attention's indexer"),
    ("index_head_dim", "the cache of a sparse attention's indexer"),
    ("block_configs", "layers that differ one by one (block_configs)"),
    ("attn_type_list", "layers of another kind (attn_type_list)"),
    ("ngram_size", "an n-gram table"),
    ("ssm_cfg", "state-space layers"),
    ("rwkv", "a recurrent state"),
)
"""Keys that mean a cache or a state beyond keys and values, where the family is not one that is known to have it."""
