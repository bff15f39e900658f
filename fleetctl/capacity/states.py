"""The state that layers without a growing cache keep for each request, by family.

Sources (vLLM 0.32.0): ``model_executor/layers/mamba/mamba_utils.py`` for the shapes, each model's
``get_mamba_state_shape_from_config`` for the keys of config.json, ``model_executor/models/config.py`` for the types.
"""

from __future__ import annotations

from collections.abc import Callable

from fleetctl.capacity.reading import Section
from fleetctl.capacity.shape import Part, State

_MODEL, _SINGLE = 2, 4
"""Bytes of the model's own numbers, and of 32-bit ones."""
_WIDTHS = {"float32": _SINGLE, "bfloat16": _MODEL, "float16": _MODEL}


def gated_delta_net(text: Section) -> State:
    """Qwen3-Next, Qwen3.5 and kin: a convolution over keys and values, and a matrix for each value head."""
    key_heads, value_heads = text.whole("linear_num_key_heads", least=1), text.whole("linear_num_value_heads", least=1)
    key_dim, value_dim = text.whole("linear_key_head_dim", least=1), text.whole("linear_value_head_dim", least=1)
    taps = text.whole("linear_conv_kernel_dim", default=4, least=1)
    width = _WIDTHS.get(text.text("mamba_ssm_dtype"), _MODEL)
    return State(
        (
            Part(2 * key_heads * key_dim + value_heads * value_dim, taps - 1, _MODEL, grows=True),
            Part(value_heads, value_dim * key_dim, width, recurrent=True),
        )
    )


def short_convolution(text: Section) -> State:
    """LFM2: the last tokens of a short convolution."""
    width = text.whole("conv_dim", "hidden_size", least=1)
    return State((Part(width, text.whole("conv_L_cache", least=1) - 1, _MODEL),))


def mamba_1(text: Section) -> State:
    """Mamba, Falcon-Mamba and Jamba."""
    inner = text.maybe("intermediate_size") if text.has("state_size") else None
    if inner is None:
        inner = text.whole("mamba_expand", "expand", default=2) * text.whole("hidden_size")
    taps = text.whole("mamba_d_conv", "conv_kernel", default=4, least=1)
    depth = text.whole("mamba_d_state", "state_size", default=16)
    return State((Part(inner, taps - 1, _MODEL), Part(inner, depth, _MODEL, recurrent=True)))


def kimi_delta(text: Section) -> State:
    """Kimi Linear: gated delta attention; the matrix is kept in 32 bits."""
    linear = text.section("linear_attn_config") or text
    heads, dim = linear.whole("num_heads", least=1), linear.whole("head_dim", least=1)
    taps = linear.whole("short_conv_kernel_size", default=4, least=1)
    return State((Part(3 * heads * dim, taps - 1, _MODEL, grows=True), Part(heads, dim * dim, _SINGLE, recurrent=True)))


def _mamba_2(inner: int, heads: int, head_dim: int, groups: int, depth: int, taps: int, width: int = _MODEL) -> State:
    convolution = Part(inner, taps - 1, _MODEL, grows=True, groups=groups, group_width=2 * depth)
    return State((convolution, Part(heads, head_dim * depth, width, recurrent=True)), checkpoint=1)


def _head_size(text: Section, name: str, usual: int) -> int:
    """Size of a head, which the file may leave to be divided up (auto)."""
    return usual if text.values.get(name) in (None, "auto") else text.whole(name, least=1)


def _mamba_d(text: Section, inner: int, heads: int) -> State:
    """Mamba-2 as Granite and Falcon name its sizes (``mamba_d_…``)."""
    return _mamba_2(
        inner,
        heads,
        _head_size(text, "mamba_d_head", inner // heads),
        text.whole("mamba_n_groups", default=1, least=1),
        text.whole("mamba_d_state", default=256),
        text.whole("mamba_d_conv", default=4, least=1),
    )


def granite_hybrid(text: Section) -> State:
    inner = text.whole("mamba_expand", default=2) * text.whole("hidden_size")
    heads = text.whole("mamba_n_heads", default=128, least=1)
    return _mamba_d(text, inner, heads)


def falcon_h1(text: Section) -> State:
    inner = text.maybe("mamba_d_ssm")
    if inner is None:
        inner = text.whole("mamba_expand", default=2) * text.whole("hidden_size")
    heads = text.whole("mamba_n_heads", least=1)
    return _mamba_d(text, inner, heads)


def nemotron_h(text: Section) -> State:
    heads, head_dim = text.whole("mamba_num_heads", least=1), text.whole("mamba_head_dim", least=1)
    return _mamba_2(
        heads * head_dim,
        heads,
        head_dim,
        text.whole("n_groups", default=8, least=1),
        text.whole("ssm_state_size", default=128),
        text.whole("conv_kernel", default=4, least=1),
        _WIDTHS.get(text.text("mamba_ssm_cache_dtype", "float32"), _SINGLE),
    )


def mamba_2(text: Section) -> State:
    heads, head_dim = text.whole("num_heads", least=1), text.whole("head_dim", least=1)
    return _mamba_2(
        text.whole("expand", default=2) * text.whole("hidden_size"),
        heads,
        head_dim,
        text.whole("n_groups", default=8, least=1),
        text.whole("state_size", default=128),
        text.whole("conv_kernel", default=4, least=1),
    )


def zamba_2(text: Section) -> State:
    inner = text.whole("mamba_expand", default=2) * text.whole("hidden_size")
    heads = text.whole("n_mamba_heads", default=8, least=1)
    return _mamba_2(
        inner,
        heads,
        _head_size(text, "mamba_headdim", inner // heads),
        text.whole("mamba_ngroups", default=1, least=1),
        text.whole("mamba_d_state", default=64),
        text.whole("mamba_d_conv", default=4, least=1),
    )


STATES: dict[str, Callable[[Section], State]] = {
    "qwen3_next": gated_delta_net,
    "qwen3_5": gated_delta_net,
    "qwen3_5_text": gated_delta_net,
    "qwen3_5_moe": gated_delta_net,
    "qwen3_5_moe_text": gated_delta_net,
    "qwen4_exp": gated_delta_net,
    "qwen4_exp_text": gated_delta_net,
    "olmo_hybrid": gated_delta_net,
    "lfm2": short_convolution,
    "lfm2_moe": short_convolution,
    "mamba": mamba_1,
    "falcon_mamba": mamba_1,
    "jamba": mamba_1,
    "mamba2": mamba_2,
    "granitemoehybrid": granite_hybrid,
    "bamba": granite_hybrid,
    "falcon_h1": falcon_h1,
    "nemotron_h": nemotron_h,
    "zamba2": zamba_2,
    "kimi_linear": kimi_delta,
}
"""model_type → the state of its layers without a growing cache."""


def ngram_convolution(text: Section) -> State:
    """Qwen3.8-Flash-Next: a dilated convolution beside the n-gram embedding, the same on every rank."""
    width = text.whole("hidden_size", least=1) * text.whole("hc_count", default=1, least=1)
    rows = (text.whole("ple_conv_kernel_size", default=4, least=1) - 1) * text.whole("ngram_size", default=1, least=1)
    return State((Part(width, rows, _MODEL, grows=True),), replicated=True)
