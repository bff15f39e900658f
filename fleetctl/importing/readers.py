"""Readers of flags that several kinds of engine have: each takes the values of one into an entry."""

from __future__ import annotations

import re
from collections.abc import Callable

from fleetctl.importing.dialect import Reader
from fleetctl.importing.found import Found, FoundModel, Setting, Word

_HUMAN = {"": 1, "k": 1000, "K": 1024, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}


def whole(text: str) -> int | None:
    """A whole number as vLLM takes it: ``32768``, ``32k`` (thousands), ``32K`` (times 1,024); None for none."""
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]+)?)([kKmMgG]?)", text.replace("_", ""))
    if match is None or (not match[2] and "." in match[1]):
        return None
    return int(float(match[1]) * _HUMAN[match[2]])


def number_of(name: str, take: Callable[[FoundModel, int], None]) -> Reader:
    """A reader of a whole number from 1 on."""

    def read(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
        number = whole(said[0])
        if number is None or number < 1:
            found.note(word.place, f"{name} {said[0]} is no whole number from 1 on")
        else:
            take(model, number)

    return read


def port(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    """Where the engine listens."""
    number = whole(said[0])
    if number is None or not 0 < number < 65536:
        found.note(word.place, f"--port {said[0]} is no port")
    else:
        model.port = number


def word_of(key: str) -> Reader:
    """A reader of one word into a setting."""

    def read(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
        model.settings[key] = Setting(said[0])

    return read


def weights(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    """What the model is read from."""
    model.settings["weights"] = Setting(said[0])


def served(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    """Names that clients use."""
    model.settings["served_as"] = Setting(list(dict.fromkeys(said)))


def context(model: FoundModel, number: int) -> None:
    """The longest request."""
    model.settings["context"] = Setting(number)


def share(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    """The share of the memory of a box."""
    try:
        share = float(said[0])
    except ValueError:
        share = 0.0
    if 0 < share <= 1:
        model.share = share
    else:
        found.note(word.place, f"{word.text.partition('=')[0]} {said[0]} is no share from 0 to 1")


def cache_type(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    """The type of the KV cache; ``auto`` is what is without it."""
    if said[0] != "auto":
        model.settings["kv_cache_dtype"] = Setting(said[0])


def parallel(model: FoundModel, number: int) -> None:
    """Tensor parallel: so many ranks."""
    model.ranks *= number


def pipeline(model: FoundModel, number: int) -> None:
    """Pipeline parallel: so many stages."""
    model.ranks *= number
    model.pipeline = model.pipeline or number > 1


def put(attribute: str) -> Callable[[FoundModel, int], None]:
    """Into an attribute of the model."""

    def take(model: FoundModel, number: int) -> None:
        setattr(model, attribute, number)

    return take


def data_parallel(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    """Engines beside each other: what copies: has."""
    if said[0] != "1":
        found.note(
            word.place,
            f"{word.text.partition('=')[0]} {said[0]} is left out: copies: has one engine on each box instead",
        )


def api_key(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    """Clients' keys: they belong to the proxy."""
    text = "--api-key is left out: the proxy checks clients' keys; write proxy: api_keys: {NAME: {env: VARIABLE}}"
    found.note(word.place, text)


def hub_token(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    """The hub's token: a reference in the environment."""
    model.environment["HF_TOKEN"] = Setting({"env": "HF_TOKEN"}, f"its value stands in {word.place}")
    found.note(word.place, "--hf-token is a secret: it became HF_TOKEN, of which fleet.yaml says where it is")


def rank_by_name(found: Found, model: FoundModel) -> None:
    """A server of encoders is not told whether its model ranks: the model's name tells it."""
    weights = model.settings.get("weights")
    if weights is not None and "rerank" in str(weights.value).lower():
        model.settings["task"] = Setting("rerank", "going by the name of the model", assumed=True)


TAKE_SECRETS: tuple[Reader, ...] = (api_key, hub_token)
"""Readers that are given secrets, and keep none."""
