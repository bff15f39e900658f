"""Which kind of layer stands where: layer_types where the file has them, else the rule of the family.

Sources: the ``configuration_*.py`` of transformers for what is meant when a key is missing, and the models of vLLM
0.32.0 for what is done with it.
"""

from __future__ import annotations

from enum import Enum, auto

from fleetctl.capacity.reading import Section
from fleetctl.capacity.states import STATES
from fleetctl.errors import SpecError


class Kind(Enum):
    """What a layer keeps."""

    FULL = auto()
    WINDOW = auto()
    STATE = auto()
    BOTH = auto()
    """A state and full attention in one layer."""
    NOTHING = auto()


MOST_LAYERS = 10_000

_WORDS = {
    "full_attention": Kind.FULL,
    "attention": Kind.FULL,
    "global_attention": Kind.FULL,
    # vLLM keeps the whole context for chunked attention: it turns its hybrid manager off for it.
    "chunked_attention": Kind.FULL,
    "sliding_attention": Kind.WINDOW,
    "sliding_window": Kind.WINDOW,
    "linear_attention": Kind.STATE,
    "mamba": Kind.STATE,
    "mamba2": Kind.STATE,
    "conv": Kind.STATE,
    "hybrid": Kind.BOTH,
    "mlp": Kind.NOTHING,
    "moe": Kind.NOTHING,
}
_LETTERS = {"M": Kind.STATE, "*": Kind.FULL, "-": Kind.NOTHING, "E": Kind.NOTHING}
_EVERY = {"gemma3": 6, "gemma3_text": 6, "gemma4": 6, "gemma4_text": 6, "cohere2": 4, "exaone4": 4, "olmo3": 4}
"""Families in which every n-th layer sees the whole context and the others a window."""
_OPT_IN = ("qwen2", "qwen3", "smollm3")
"""Families that have a window only where use_sliding_window says so."""
_INTERVAL = ("qwen3_next", "qwen3_5", "qwen4_exp")
"""Families in which every n-th layer has attention, and the others a state."""
_ALL_STATE = ("mamba", "mamba2", "falcon_mamba")


def layer_kinds(text: Section, model_type: str) -> tuple[Kind, ...]:
    """The kind of each layer. Raises SpecError for a list that does not fit, or a word that is not known."""
    count = text.whole("num_hidden_layers", "n_layer", "n_layers", "num_layers", least=1, most=MOST_LAYERS)
    named = _named(text, count)
    if named is not None:
        return named
    if text.has("hybrid_override_pattern"):
        return _lettered(text)
    if model_type in _ALL_STATE:
        return (Kind.STATE,) * count
    if model_type == "falcon_h1":
        return (Kind.BOTH,) * count
    return tuple(_by_rule(text, model_type, place, count) for place in range(count))


def window_of(text: Section, model_type: str) -> int | None:
    """Tokens that a window holds; None: this model has none."""
    wanted = text.flag("use_sliding_window", default=not model_type.startswith(_OPT_IN))
    window = text.maybe("sliding_window", "sliding_window_size") if wanted else None
    if window and model_type == "cohere2":
        return window + 1  # its window does not count the token itself
    if window and text.values.get("use_bidirectional_attention") is True:
        return window // 2 + 1
    return window or None


def _named(text: Section, count: int) -> tuple[Kind, ...] | None:
    for name in ("layer_types", "layers_block_type"):
        words = text.words(name)
        if words is None:
            continue
        unknown = sorted({word for word in words if word not in _WORDS})
        if unknown:
            raise SpecError(
                f"{text.where}: {name} has {', '.join(unknown)[:80]}, which is not known",
                hint=f"known: {', '.join(_WORDS)}",
            )
        if len(words) < count:
            raise SpecError(f"{text.where}: {name} has {len(words)} entries for {count} layers")
        return tuple(_WORDS[word] for word in words[:count])
    return None


def _lettered(text: Section) -> tuple[Kind, ...]:
    pattern = text.text("hybrid_override_pattern")
    unknown = sorted(set(pattern) - set(_LETTERS))
    if unknown or not pattern or len(pattern) > MOST_LAYERS:
        raise SpecError(f"{text.where}: hybrid_override_pattern is not made of {' '.join(_LETTERS)} alone")
    return tuple(_LETTERS[letter] for letter in pattern)


def _by_rule(text: Section, model_type: str, place: int, count: int) -> Kind:
    """The kind of layer ``place`` where the file has no list."""
    if model_type.startswith(_INTERVAL) or (text.has("linear_num_value_heads") and model_type in STATES):
        interval = text.whole("full_attention_interval", default=4, least=1)
        return Kind.STATE if (place + 1) % interval else Kind.FULL
    if model_type == "jamba":
        period, offset = text.whole("attn_layer_period", default=8, least=1), text.whole("attn_layer_offset", default=4)
        return Kind.FULL if place % period == offset else Kind.STATE
    if text.has("full_attn_idxs"):  # older LFM2
        return Kind.FULL if place in (text.wholes("full_attn_idxs") or ()) else Kind.STATE
    linear = text.section("linear_attn_config")
    if linear is not None:  # Kimi Linear counts from 1
        return Kind.FULL if place + 1 in (linear.wholes("full_attn_layers") or ()) else Kind.STATE
    if text.has("attn_layer_indices"):  # Bamba
        return Kind.FULL if place in (text.wholes("attn_layer_indices") or ()) else Kind.STATE
    if model_type in STATES:
        raise SpecError(f"{text.where}: no layer_types, and it has layers of several kinds")
    if window_of(text, model_type) is None:
        return Kind.FULL
    return _window_rule(text, model_type, place, count)


def _window_rule(text: Section, model_type: str, place: int, count: int) -> Kind:
    if model_type in ("gemma2", "gpt_oss"):
        return Kind.FULL if place % 2 else Kind.WINDOW
    if model_type in _EVERY:
        pattern = text.values.get("sliding_window_pattern")
        if isinstance(pattern, str) and pattern and set(pattern) <= {"L", "G"}:
            return Kind.WINDOW if pattern[place % len(pattern)] == "L" and place + 1 < count else Kind.FULL
        every = text.whole("sliding_window_pattern", default=_EVERY[model_type], least=1)
        return Kind.WINDOW if (place + 1) % every else Kind.FULL
    if model_type.startswith(("qwen2", "qwen3")):
        return Kind.WINDOW if place >= text.whole("max_window_layers", default=28) else Kind.FULL
    return Kind.WINDOW
