"""Whatever is in a config.json, there is a sum, bounds, or one clear error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.capacity.attention import Launch
from fleetctl.capacity.config import quant_method, read_shape
from fleetctl.capacity.estimate import Lora, Room, estimate
from fleetctl.errors import SpecError

GIB = 1024**3
MODELS = [
    json.loads(path.read_text()) for path in sorted((Path(__file__).parents[2] / "bench/data/capacity").glob("*.json"))
]
KEYS = sorted(
    {key for model in MODELS for part in (model, model.get("text_config", {})) for key in part}
    | {"layer_types", "sliding_window", "hybrid_override_pattern", "kv_lora_rank", "quantization_config", "llm_config"}
    | {"mamba_n_heads", "num_kv_shared_layers", "attn_layer_period", "linear_attn_config", "full_attn_idxs", "head_dim"}
)
TYPES = [
    "llama", "gemma2", "gemma4_text", "qwen3_next", "qwen4_exp_text", "jamba", "nemotron_h", "falcon_h1", "zamba2",
    "kimi_linear", "deepseek_v3", "deepseek_v32", "mamba", "mamba2", "granitemoehybrid", "lfm2", "cohere2", "what",
]  # fmt: skip
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.integers(),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(TYPES),
    st.lists(st.integers(-1, 9), max_size=4),
    st.lists(st.sampled_from(["full_attention", "mamba", "sliding_attention", "conv", "x"]), max_size=70),
    st.dictionaries(st.sampled_from(KEYS), st.one_of(st.integers(-1, 9), st.text(max_size=3)), max_size=3),
)
LAUNCHES = st.builds(
    dict,
    context=st.sampled_from([1, 4096, 1 << 30]),
    tp=st.sampled_from([1, 2, 3, 64]),
    pp=st.sampled_from([1, 2, 7]),
    kv=st.sampled_from(["auto", "fp8", "nvfp4", "int4_per_token_head"]),
    spec_tokens=st.sampled_from([0, 4]),
    prefix_caching=st.booleans(),
)


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, Any]:
    """A model's configuration with keys taken out, added, or with values that do not belong there."""
    model = json.loads(json.dumps(draw(st.sampled_from(MODELS))))
    for _ in range(draw(st.integers(0, 6))):
        part = model["text_config"] if isinstance(model.get("text_config"), dict) and draw(st.booleans()) else model
        key = draw(st.sampled_from(KEYS))
        if draw(st.integers(0, 3)) == 0:
            part.pop(key, None)
        else:
            part[key] = draw(st.sampled_from(TYPES)) if key == "model_type" else draw(VALUES)
    return dict(model)


@settings(max_examples=250)
@given(damaged(), LAUNCHES)
def test_a_damaged_config_gives_a_sum_or_one_clear_error(model: dict[str, Any], launch: dict[str, Any]) -> None:
    text = json.dumps(model)
    try:
        quant_method(text)
        shape = read_shape(text)
        one = estimate(shape, Launch(**launch), Room(128 * GIB, 0.76), 50 * GIB, lora=Lora(2, 16))
    except SpecError as error:
        assert error.message
        return
    assert one.outcome.tokens >= 0
    assert one.low.tokens <= one.outcome.tokens


@settings(max_examples=150)
@given(st.one_of(st.text(), st.binary(), st.recursive(VALUES, lambda inner: st.lists(inner, max_size=3)).map(repr)))
def test_a_file_that_is_no_config_is_told(text: str | bytes) -> None:
    try:
        read_shape(text, "config.json")
    except SpecError as error:
        assert error.message.startswith("config.json")
