"""How a model makes a vector out of text, read from its folder as sentence-transformers writes it.

``modules.json`` lists the stages; this server knows a transformer, then one way of pooling, then perhaps normalising.
Any other stage or way is refused when the server starts: vectors that are made in another way than the model was
trained for look as good as right ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fleetctl.pool.encoder.errors import ModelError

Pooling = Literal["cls", "max", "mean", "mean_sqrt_len_tokens"]
POOLINGS: tuple[Pooling, ...] = ("cls", "max", "mean", "mean_sqrt_len_tokens")
_PREFIX = "pooling_mode_"
_KNOWN_AS: dict[str, Pooling] = {"cls_token": "cls", "max_tokens": "max", "mean_tokens": "mean"}
_KNOWN_AS |= {"mean_sqrt_len_tokens": "mean_sqrt_len_tokens"}


@dataclass(frozen=True)
class Recipe:
    """A model's folder, understood."""

    folder: Path
    """Where config.json, the tokenizer and the weights are."""
    config: dict[str, Any]
    """config.json."""
    pooling: Pooling
    normalise: bool
    """Whether the vectors have length 1."""
    most_tokens: int
    """Longest text in tokens, special ones included."""
    lower_case: bool = False
    sizes: tuple[int, ...] | None = ()
    """Shorter vectors that the model was trained for (Matryoshka); None: any size."""

    @property
    def kind(self) -> str:
        """``model_type``, such as bert."""
        return str(self.config.get("model_type", ""))


def read_recipe(folder: Path, most_tokens: int | None = None) -> Recipe:
    """The recipe in ``folder``. ``most_tokens`` replaces what the folder says of the longest text.

    Raises ModelError where the folder is no such model, or asks for something that this server cannot do.
    """
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder", hint="--model names a folder with config.json and modules.json")
    stages = _stages(folder)
    transformer = folder / str(stages[0].get("path", ""))
    config = _object(transformer / "config.json")
    settings = next((_object(path) for path in sorted(transformer.glob("sentence_*_config.json"))), {})
    positions = _positions(config)
    said = settings.get("max_seq_length") or _told_by_tokenizer(transformer) or positions
    if positions and max(said if most_tokens is None else most_tokens, 1) > positions:
        if most_tokens is not None:
            raise ModelError(
                f"--max-model-len {most_tokens} is more than the {positions} positions of {folder}",
                hint=f"give {positions} or less",
            )
        said = positions
    if not said:
        raise ModelError(f"{folder} does not say how long a text may be", hint="give --max-model-len")
    return Recipe(
        transformer,
        config,
        _pooling(folder / str(stages[1].get("path", "1_Pooling")) / "config.json"),
        len(stages) == 3,
        most_tokens or int(said),
        bool(settings.get("do_lower_case")),
        _sizes(config),
    )


def _stages(folder: Path) -> list[dict[str, Any]]:
    path = folder / "modules.json"
    if not path.is_file():
        raise ModelError(
            f"{folder} has no modules.json, so that nothing says how its vectors are pooled",
            hint="embedding models of sentence-transformers have one; fetch the whole repository",
        )
    read = _read(path)
    stages = [one for one in read if isinstance(one, dict)] if isinstance(read, list) else []
    kinds = [str(one.get("type", "")).rpartition(".")[2] for one in stages]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ModelError(
            f"{path} asks for {', '.join(kinds) or 'nothing that can be read'}; "
            "known are Transformer, Pooling and (optional) Normalize, in this order",
            hint="serve this model with another runtime",
        )
    return stages


def _pooling(path: Path) -> Pooling:
    config = _object(path)
    mode = config.get("pooling_mode")  # sentence-transformers 5.2 and later write one name
    names = [mode] if isinstance(mode, str) else mode if isinstance(mode, list) else None
    if names is None:
        on = [key.removeprefix(_PREFIX) for key, value in config.items() if key.startswith(_PREFIX) and value is True]
        names = [_KNOWN_AS.get(name, name) for name in on]
    if len(names) != 1 or names[0] not in POOLINGS:
        told = " and ".join(map(str, names)) or "no way of pooling"
        raise ModelError(
            f"{path} asks for {told}; known are {', '.join(POOLINGS)}, one at a time",
            hint="serve this model with another runtime",
        )
    return next(one for one in POOLINGS if one == names[0])


def _positions(config: dict[str, Any]) -> int:
    """Tokens that the model has positions for; 0: not said. RoBERTa's begin after the padding's."""
    most = config.get("max_position_embeddings")
    if not isinstance(most, int):
        return 0
    return most - first_position(config)


def first_position(config: Mapping[str, Any]) -> int:
    """Position of the first token: RoBERTa and its kin count from the padding's number on."""
    kin = config.get("model_type") in ("roberta", "xlm-roberta", "camembert")
    return int(config.get("pad_token_id", 1)) + 1 if kin else 0


def _told_by_tokenizer(folder: Path) -> int | None:
    path = folder / "tokenizer_config.json"
    said = _object(path).get("model_max_length") if path.is_file() else None
    return said if isinstance(said, int) and said < 1 << 24 else None  # unlimited is written as 1e30


def _sizes(config: dict[str, Any]) -> tuple[int, ...] | None:
    """As vLLM reads it: ``matryoshka_dimensions`` lists them, ``is_matryoshka`` alone allows any."""
    listed = config.get("matryoshka_dimensions")
    if isinstance(listed, list):
        return tuple(sorted(int(one) for one in listed))
    return None if config.get("is_matryoshka") is True else ()


def _object(path: Path) -> dict[str, Any]:
    value = _read(path)
    if not isinstance(value, dict):
        raise ModelError(f"{path} has to be a JSON object")
    return value


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}", hint="fetch the model again") from None
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}", hint="fetch the model again") from None
