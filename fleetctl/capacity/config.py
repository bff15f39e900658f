"""config.json of any family, to a ModelShape. Raises SpecError, with the key, for anything that cannot be.

What is not known is not guessed: the shape then says what is unknown and has two readings, the dearest and the
cheapest.
"""

from __future__ import annotations

from fleetctl.capacity.families import (
    ENCODERS,
    ENGINE_SPLIT_LAYERS,
    LATENT,
    PLAIN,
    SPARSE_LATENT,
    STRANGE_KEYS,
    WRAPPERS,
)
from fleetctl.capacity.mixing import Kind, layer_kinds, window_of
from fleetctl.capacity.reading import Section, parse_config
from fleetctl.capacity.shape import Cache, Compressed, Full, Latent, Layer, ModelShape, Ring, State, Unknown, Window
from fleetctl.capacity.states import STATES, ngram_convolution
from fleetctl.errors import SpecError

_CONTEXT_KEYS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_target_positions",
    "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
_KV_HEAD_KEYS = (
    "n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups",
)  # fmt: skip
_QSA = ("qwen4_exp", "qwen4_exp_text")
_INDEXER_WIDTH = 132
"""Bytes per token of the indexer of DeepSeek-V3.2: 128 numbers of 8 bits and a scale of 32."""


def read_shape(text: str | bytes, source: str = "config.json") -> ModelShape:
    """The shape of the model that a config.json describes. ``source`` is what messages call the file."""
    top = parse_config(text, source)
    inner = _text_section(top)
    model_type = inner.text("model_type") or top.text("model_type")
    if not model_type:
        raise SpecError(f"{source}: model_type is missing", hint="is this the config.json of a language model?")
    if not inner.has("num_hidden_layers", "n_layer", "n_layers", "num_layers"):
        raise SpecError(
            f"{source}: no number of layers (num_hidden_layers) in it, nor in {', '.join(WRAPPERS[:3])}",
            hint="the memory of such a model cannot be computed; give the engine's own log with --log",
        )
    layers, unknown = _layers(inner, model_type)
    draft = _draft(inner, top, model_type, layers)
    encoders = tuple(dict.fromkeys(word for key, word in ENCODERS.items() if top.has(key)))
    return ModelShape(
        source=source,
        model_type=model_type,
        layers=layers,
        context=_context(inner),
        hidden=inner.whole("hidden_size", "n_embd", "d_model", default=0),
        intermediate=_widest(inner, "intermediate_size", "n_inner", "ffn_dim"),
        heads=inner.whole("num_attention_heads", "n_head", default=0),
        vocabulary=inner.whole("vocab_size", default=0),
        experts=_experts(inner),
        expert_intermediate=inner.maybe("moe_intermediate_size") or 0,
        experts_per_token=inner.maybe("num_experts_per_tok", "num_experts_per_token", "top_k_experts") or 0,
        tied=_flag_of(inner, top, "tie_word_embeddings"),
        draft=draft,
        checkpoint_kv=_checkpoint_kv(top) or _checkpoint_kv(inner),
        encoders=encoders,
        block_outermost=model_type in _QSA,
        unknown=unknown,
        notes=tuple(_notes(inner, encoders)),
    )


def quant_method(text: str | bytes, source: str = "config.json") -> str:
    """quant_method of a config.json, which tells AWQ from GPTQ; empty where nothing is quantized."""
    found = parse_config(text, source).section("quantization_config")
    return found.text("quant_method") if found else ""


def _text_section(top: Section) -> Section:
    """The part of the file that describes the text model; wrappers may stand in wrappers."""
    inner = top
    for _ in range(3):
        found = next((part for name in WRAPPERS if (part := inner.section(name)) is not None), None)
        if found is None:
            break
        inner = found
    return inner


def _layers(text: Section, model_type: str) -> tuple[tuple[Layer, ...], Unknown | None]:
    strange = list(dict.fromkeys(what for key, what in STRANGE_KEYS if text.values.get(key)))
    if model_type in SPARSE_LATENT:
        return _sparse_latent(text, strange)
    if model_type in LATENT and text.has("kv_lora_rank"):
        return _known(text, model_type), None
    if model_type in STATES or model_type in _QSA:
        return _known(text, model_type), None
    if model_type in PLAIN and model_type == "minimax_m2":
        strange = [what for what in strange if "attn_type_list" not in what]  # all its layers are of the one kind
    if model_type in PLAIN and not strange and not text.has("kv_lora_rank"):
        return _known(text, model_type), None
    return _not_known(text, model_type, strange)


def _known(text: Section, model_type: str) -> tuple[Layer, ...]:
    """Layers of a family that is known, one by one."""
    kinds = layer_kinds(text, model_type)
    state = _state(text, model_type) if {Kind.STATE, Kind.BOTH} & set(kinds) else None
    latent = _latent(text) if model_type in LATENT else None
    window = window_of(text, model_type)
    shared_from = len(kinds) - min(text.whole("num_kv_shared_layers", default=0), len(kinds))
    layers: list[Layer] = []
    for place, kind in enumerate(kinds):
        caches: list[Cache] = []
        if kind in (Kind.STATE, Kind.BOTH) and state is not None:
            caches.append(state)
        if kind in (Kind.FULL, Kind.BOTH) and place < shared_from:
            caches.extend([latent] if latent else _full(text, model_type))
        if kind is Kind.WINDOW and place < shared_from:
            if window is None:
                raise SpecError(f"{text.where}: layers with a sliding window, and no sliding_window")
            caches.append(_windowed(text, model_type, window))
        layers.append(Layer(tuple(caches)))
    for place in text.wholes("ple_layer_ids") or ():
        if model_type in _QSA and 0 < place <= len(layers):
            here = layers[place - 1]
            layers[place - 1] = Layer((*here.caches, ngram_convolution(text)))
    return tuple(layers) * ENGINE_SPLIT_LAYERS.get(model_type, 1)


def _state(text: Section, model_type: str) -> State:
    if model_type not in STATES:
        raise SpecError(f"{text.where}: layers with a state, which the family {model_type} is not known to have")
    return STATES[model_type](text)


def _heads(text: Section, model_type: str) -> tuple[int, int, int]:
    """KV heads, and the sizes of a key and of a value."""
    heads = text.whole("num_attention_heads", "n_head", "num_heads", least=1)
    kv_heads = text.whole(*_KV_HEAD_KEYS, default=heads)
    if model_type == "falcon" and text.flag("multi_query") and not text.flag("new_decoder_architecture"):
        kv_heads = 1
    dim = text.maybe("head_dim", "hidden_size_per_head") or 0
    if model_type == "zamba2":
        dim = text.maybe("attention_head_dim") or dim
    if not dim:
        dim = text.whole("hidden_size", "n_embd", "d_model", least=1) // heads
    if kv_heads < 1 or dim < 1:
        raise SpecError(f"{text.where}: no size of an attention head (head_dim, or hidden_size / num_attention_heads)")
    return kv_heads, dim, dim


def _full(text: Section, model_type: str) -> list[Cache]:
    kv_heads, key, value = _heads(text, model_type)
    if model_type.startswith("gemma4"):
        key = value = text.whole("global_head_dim", default=512)
        if text.flag("attention_k_eq_v"):
            kv_heads = text.maybe("num_global_key_value_heads") or kv_heads
    caches: list[Cache] = [Full(kv_heads, key, value)]
    if model_type in _QSA:
        width = text.whole("indexer_head_dim", default=128)
        ratio = text.whole("indexer_compress_ratio", default=4, least=1)
        caches += [Compressed(width, ratio), Ring(width, ratio)]
    return caches


def _windowed(text: Section, model_type: str, window: int) -> Window:
    kv_heads, key, value = _heads(text, model_type)
    return Window(kv_heads, key, value, window)


def _latent(text: Section) -> Latent:
    return Latent(text.whole("kv_lora_rank", least=1) + text.whole("qk_rope_head_dim", default=0))


def _sparse_latent(text: Section, strange: list[str]) -> tuple[tuple[Layer, ...], Unknown]:
    count = len(layer_kinds(text, "deepseek_v3"))
    plain = (Layer((_latent(text),)),) * count
    dearest = (Layer((_latent(text), Compressed(_INDEXER_WIDTH // 2, 1))),) * count
    what = strange[0] if strange else "the cache of a sparse attention's indexer"
    return dearest, Unknown(what, dearest, plain)


def _not_known(text: Section, model_type: str, strange: list[str]) -> tuple[tuple[Layer, ...], Unknown]:
    """Bounds: at most a cache of all layers with all KV heads; at least what compression leaves, where it is told."""
    count = text.whole("num_hidden_layers", "n_layer", "n_layers", "num_layers", least=1, most=10_000)
    what = "; ".join(strange) or f"the family {model_type}"
    kv_heads, key, value = _heads(text, model_type)
    if model_type.startswith("deepseek_v4"):  # one vector per token for keys and values together
        each: Cache = Latent(key)
    elif text.has("kv_lora_rank"):
        nope = text.whole("qk_nope_head_dim", default=0) + text.whole("qk_rope_head_dim", default=0)
        heads = text.whole("num_attention_heads", "n_head", least=1)
        each = Full(heads, max(nope, key), text.whole("v_head_dim", default=value))
    else:
        each = Full(kv_heads, key, value)
    extra: tuple[Cache, ...] = (Compressed(_INDEXER_WIDTH // 2, 1),) if "indexer" in what else ()
    dearest = (Layer((each, *extra)),) * count
    return dearest, Unknown(what, dearest, _cheapest(text, each, count))


def _cheapest(text: Section, each: Cache, count: int) -> tuple[Layer, ...] | None:
    ratios = text.wholes("compress_ratios")
    if ratios and isinstance(each, Latent):
        # At least the widest vector, at 1 byte a number, for every `ratio` tokens.
        kept = [ratio for ratio in ratios[:count] if ratio]
        return tuple(Layer((Compressed(max(each.width // 2, 1), ratio),)) for ratio in kept) or None
    if text.has("kv_lora_rank"):
        return (Layer((_latent(text),)),) * count
    return None


def _draft(text: Section, top: Section, model_type: str, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Layers of the model's own draft head; each is one of its layers with attention over the whole context."""
    count = text.maybe("mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_modules", most=1000)
    if count is None:
        count = top.maybe("num_nextn_predict_layers", most=1000) or (1 if model_type == "qwen3_next" else 0)
    whole = next(
        (layer for layer in layers if any(isinstance(cache, Full | Latent) for cache in layer.caches)), Layer()
    )
    return (whole,) * count


def _widest(text: Section, *names: str) -> int:
    """The first of ``names`` that is there; the largest where each layer has its own (Gemma 3n)."""
    name = next((name for name in names if text.has(name)), names[0])
    if isinstance(text.values.get(name), list):
        return max(text.wholes(name) or (0,))
    return text.whole(name, default=0)


def _experts(text: Section) -> int:
    names = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
    found = next((text.values[name] for name in names if text.values.get(name) is not None), 0)
    if isinstance(found, list):
        found = found[0] if found else 0
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < 10**6 else 0


def _context(text: Section) -> int | None:
    found = [text.whole(name, least=1) for name in _CONTEXT_KEYS if text.has(name)]
    return min(found) if found else None


def _flag_of(inner: Section, top: Section, name: str) -> bool:
    return inner.flag(name) if inner.has(name) else top.flag(name)


def _checkpoint_kv(part: Section) -> str | None:
    """KV dtype that the checkpoint asks for: vLLM follows it when the dtype is ``auto``, for ModelOpt's builds."""
    quantization = part.section("quantization_config")
    if quantization is None or not quantization.text("quant_method").startswith("modelopt"):
        return None
    inner = quantization.section("quantization") or quantization
    for place in (inner, quantization):
        for name in ("kv_cache_scheme", "kv_cache_quant_algo"):
            scheme = place.values.get(name)
            if isinstance(scheme, dict) and scheme.get("type") == "float" and not scheme.get("dynamic"):
                return "fp8" if scheme.get("num_bits") == 8 else "nvfp4" if scheme.get("num_bits") == 4 else None
            if isinstance(scheme, str) and scheme.lower() in ("fp8", "nvfp4"):
                return scheme.lower()
    return None


def _notes(text: Section, encoders: tuple[str, ...]) -> list[str]:
    notes = []
    if text.has("attention_chunk_size"):
        notes.append("chunked attention: the engine keeps the whole context for it by default")
    if encoders:
        notes.append(
            f"encoders ({', '.join(encoders)}): their weights are counted, the memory of their largest input is not;"
            " calibrate with --log, or run the engine with --language-model-only"
        )
    return notes
