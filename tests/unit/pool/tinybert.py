"""Small models with random weights for the tests of the encoder, and what their vectors have to be.

The reference is the formulae of BERT in float64, one text at a time, so without padding, batches and masks.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

WORDS = ["the", "a", "fleet", "box", "queue", "model", "token", "##s", "##ed", "serve", "load", "is", "full", "of", "."]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
CLS, SEP = VOCABULARY.index("[CLS]"), VOCABULARY.index("[SEP]")
WIDTH, INNER, HEADS, LAYERS, POSITIONS = 32, 64, 4, 2, 24
MOST = 16
CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": POSITIONS,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "pad_token_id": 0,
    "type_vocab_size": 2,
    "vocab_size": len(VOCABULARY),
}
TOKENIZER = {
    "version": "1.0",
    "truncation": {"direction": "Right", "max_length": 6, "strategy": "LongestFirst", "stride": 0},
    "padding": {
        "strategy": {"Fixed": 6},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    },
    "added_tokens": [],
    "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "lowercase": True},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            name: {"id": name, "ids": [number], "tokens": [name]} for name, number in (("[CLS]", CLS), ("[SEP]", SEP))
        },
    },
    "decoder": None,
    "model": {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {word: number for number, word in enumerate(VOCABULARY)},
    },
}
STAGES = ["Transformer", "Pooling", "Normalize"]
Weights = dict[str, Any]


def write(
    folder: Path,
    *,
    stages: Sequence[str] = STAGES,
    pooling: object = None,
    dtype: str = "F32",
    prefix: str = "",
    **config: object,
) -> Weights:
    """A model in ``folder``; its weights as float64, as they are stored. ``config`` is put into config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = CONFIG | config
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {
            "idx": number,
            "name": str(number),
            "path": paths.get(name, name),
            "type": f"sentence_transformers.models.{name}",
        }
        for number, name in enumerate(stages)
    ]
    save(folder / "modules.json", modules)
    save(folder / "config.json", whole)
    save(folder / "tokenizer.json", TOKENIZER)
    save(folder / "sentence_bert_config.json", {"max_seq_length": MOST, "do_lower_case": False})
    (folder / "1_Pooling").mkdir(exist_ok=True)
    way = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True} if pooling is None else pooling
    save(folder / "1_Pooling/config.json", {"word_embedding_dimension": WIDTH, **dict(way)})  # type: ignore[call-overload]
    return save_weights(folder / "model.safetensors", random_weights(whole), dtype, prefix)


def save(path: Path, content: object) -> None:
    """A JSON file."""
    path.write_text(json.dumps(content))


def random_weights(config: dict[str, Any]) -> Weights:
    """Weights large enough that every part of the model counts."""
    rng = np.random.default_rng(8)

    def linear(name: str, out: int, into: int) -> Weights:
        return {f"{name}.weight": rng.normal(0, 0.3, (out, into)), f"{name}.bias": rng.normal(0, 0.3, out)}

    def norm(name: str) -> Weights:
        return {f"{name}.weight": rng.normal(1, 0.2, WIDTH), f"{name}.bias": rng.normal(0, 0.2, WIDTH)}

    found = {
        "embeddings.word_embeddings.weight": rng.normal(0, 1, (len(VOCABULARY), WIDTH)),
        "embeddings.position_embeddings.weight": rng.normal(0, 1, (config["max_position_embeddings"], WIDTH)),
        "embeddings.token_type_embeddings.weight": rng.normal(0, 1, (2, WIDTH)),
        **norm("embeddings.LayerNorm"),
    }
    for number in range(LAYERS):
        name = f"encoder.layer.{number}"
        for role in ("query", "key", "value"):
            found |= linear(f"{name}.attention.self.{role}", WIDTH, WIDTH)
        found |= linear(f"{name}.attention.output.dense", WIDTH, WIDTH) | norm(f"{name}.attention.output.LayerNorm")
        found |= linear(f"{name}.intermediate.dense", INNER, WIDTH) | linear(f"{name}.output.dense", WIDTH, INNER)
        found |= norm(f"{name}.output.LayerNorm")
    return found


def save_weights(path: Path, weights: Weights, dtype: str = "F32", prefix: str = "") -> Weights:
    """A safetensors file; the weights as a reader gets them, without the prefix."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data, kept = b"", {}
    for name, array in weights.items():
        raw, kept[name] = _stored(array, dtype)
        header[prefix + name] = {
            "dtype": dtype,
            "shape": array.shape,
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)
    return kept


def _stored(array: Any, dtype: str) -> tuple[bytes, Any]:
    if dtype == "BF16":  # the upper half of a float32
        raw = (array.astype("<f4").view("<u4") >> 16).astype("<u2")
        return raw.tobytes(), (raw.astype("<u4") << 16).view("<f4").astype(np.float64)
    stored = array.astype({"F32": "<f4", "F16": "<f2"}.get(dtype, "<f8"))
    return stored.tobytes(), stored.astype(np.float64)


def read_weights(path: Path) -> Weights:
    """The float32 tensors of a safetensors file, as float64."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    start = 8 + length
    found = {name: one for name, one in header.items() if one["dtype"] == "F32"}
    return {
        name: np.frombuffer(data[start + one["data_offsets"][0] : start + one["data_offsets"][1]], "<f4")
        .reshape(one["shape"])
        .astype(np.float64)
        for name, one in found.items()
    }


# What the vectors have to be ------------------------------------------------------------------------------------------


def hidden(weights: Weights, config: dict[str, Any], tokens: Sequence[int], first_position: int = 0) -> Any:
    """One vector per token, [tokens, width]."""
    w, heads, length = weights, config["num_attention_heads"], len(tokens)
    positions = w["embeddings.position_embeddings.weight"][first_position : first_position + length]
    x = w["embeddings.word_embeddings.weight"][list(tokens)] + positions
    x = _norm(x + w["embeddings.token_type_embeddings.weight"][0], w, "embeddings.LayerNorm")
    for number in range(config["num_hidden_layers"]):
        name = f"encoder.layer.{number}"
        parts = [_linear(x, w, f"{name}.attention.self.{role}") for role in ("query", "key", "value")]
        query, key, value = (one.reshape(length, heads, -1).transpose(1, 0, 2) for one in parts)
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[-1])
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        mixed = (shares @ value).transpose(1, 0, 2).reshape(length, -1)
        x = _norm(_linear(mixed, w, f"{name}.attention.output.dense") + x, w, f"{name}.attention.output.LayerNorm")
        inner = _ACTS[config["hidden_act"]](_linear(x, w, f"{name}.intermediate.dense"))
        x = _norm(_linear(inner, w, f"{name}.output.dense") + x, w, f"{name}.output.LayerNorm")
    return x


def vector(rows: Any, way: str = "mean", normalise: bool = True) -> Any:
    """One vector of a text out of those of its tokens."""
    ways: dict[str, Callable[[Any], Any]] = {
        "mean": lambda x: x.mean(0),
        "cls": lambda x: x[0],
        "max": lambda x: x.max(0),
        "mean_sqrt_len_tokens": lambda x: x.sum(0) / math.sqrt(len(x)),
    }
    pooled = ways[way](rows)
    return pooled / np.linalg.norm(pooled) if normalise else pooled


def _linear(x: Any, weights: Weights, name: str) -> Any:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _norm(x: Any, weights: Weights, name: str) -> Any:
    middle = x - x.mean(-1, keepdims=True)
    return middle / np.sqrt(middle.var(-1, keepdims=True) + 1e-12) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


_ACTS: dict[str, Callable[[Any], Any]] = {
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
    "gelu_new": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "relu": lambda x: np.maximum(x, 0),
}
