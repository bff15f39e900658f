"""What one token costs in each KV dtype that vLLM knows: bytes of a head's key (or value), and of a latent vector.

Sources (vLLM 0.32.0): ``v1/kv_cache_interface.py`` (AttentionSpec, get_kv_quant_mode), ``utils/torch_utils.py``
(nvfp4_kv_cache_full_dim), ``v1/attention/backends/triton_attn.py`` (customize_spec: scales per token and head).
"""

from __future__ import annotations

from fleetctl.errors import SpecError

NAMES = (
    "auto", "bfloat16", "float16", "float32", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_per_token_head",
    "int8_per_token_head", "int4_per_token_head", "nvfp4",
)  # fmt: skip
_ALIASES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "float": "float32", "fp32": "float32"}
_PLAIN = {"bfloat16": 2, "float16": 2, "float32": 4, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
_SCALE = 4
"""Bytes of the scale that the per-token-head kinds keep beside each key and each value."""


def known_dtype(name: str) -> str:
    """vLLM's own name for a KV dtype. Raises SpecError for one that is not known."""
    lowered = name.strip().lower()
    wanted = _ALIASES.get(lowered, lowered)
    if wanted not in NAMES:
        raise SpecError(f"KV dtype {name} is not known", hint=f"known: {', '.join(NAMES)}")
    return wanted


def side_bytes(dtype: str, dim: int, model_bytes: int) -> int:
    """Bytes of one head's key, or value, of one token, with ``dim`` numbers."""
    if dtype == "auto":
        return dim * model_bytes
    if dtype in _PLAIN:
        return dim * _PLAIN[dtype]
    if dtype == "nvfp4":
        return dim // 2 + dim // 16
    return (dim // 2 if dtype == "int4_per_token_head" else dim) + _SCALE


def latent_bytes(dtype: str, width: int, model_bytes: int) -> int:
    """Bytes of the latent vector of one token. Raises SpecError where vLLM has no such cache for MLA."""
    if dtype == "auto":
        return width * model_bytes
    if dtype in _PLAIN:
        return width * _PLAIN[dtype]
    raise SpecError(f"KV dtype {dtype} is not for latent attention (MLA)", hint="use auto, bfloat16 or fp8")
