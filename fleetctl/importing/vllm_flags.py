"""Flags of ``vllm serve`` into an entry: what fleet.yaml has a key for goes there, the rest stays an argument."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from fleetctl.engine.runtimes.flags import flag_name
from fleetctl.engine.runtimes.vllm import ALIASES
from fleetctl.importing.found import Found, FoundModel, Setting, Word, is_secret
from fleetctl.spec.problems import holds_secret

_NUMBER = re.compile(r"-\d+(\.\d+)?")
_HUMAN = {"": 1, "k": 1000, "K": 1024, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}
_SETS_ITSELF = {
    "--host": "",
    "--node-rank": "",
    "--headless": "",
    "--master-addr": "the head is the first box of split:",
    "--uds": "the proxy and the gates reach an engine over TCP",
    "--config": "the file that it names was not read: give its settings as arguments",
    "--env-file": "the file that it names was not read",
}
"""Flags that are left out: what fleetctl does in their place, where that is to be told."""


def read_flags(found: Found, model: FoundModel, words: list[Word]) -> None:
    """Take all words behind ``vllm serve``: the model, and flags with their values."""
    at = 0
    dotted: dict[str, Any] = {}
    while at < len(words):
        word = words[at]
        at += 1
        if not _is_flag(word.text):
            _positional(found, model, word)
            continue
        values = []
        while "=" not in word.text and at < len(words) and not _is_flag(words[at].text):
            values.append(words[at])
            at += 1
            if len(values) == 1 and not _takes_several(word.text) and _begins_positional(model, values, words[at:]):
                break
        _flag(found, model, word, values, dotted)
    if dotted:
        _speculative(found, model, word, json.dumps(dotted))


def _is_flag(text: str) -> bool:
    return text.startswith("-") and len(text) > 1 and not _NUMBER.fullmatch(text) and " " not in text.partition("=")[0]


def _takes_several(flag: str) -> bool:
    return flag_name(flag, ALIASES) in ("--served-model-name", "--lora-modules", "--middleware", "--allowed-origins")


def _begins_positional(model: FoundModel, values: list[Word], rest: list[Word]) -> bool:
    """The model may stand behind flags: after one value, where nothing else has named it yet."""
    return "weights" not in model.settings and bool(rest) and not _is_flag(rest[0].text)


def _positional(found: Found, model: FoundModel, word: Word) -> None:
    if "weights" not in model.settings:
        model.settings["weights"] = Setting(word.text)
    else:
        found.note(word.place, f"{_shown(word.text)} is one word too many: the model is named already")


def _shown(text: str) -> str:
    return "a word" if holds_secret(text) else repr(text)


def _flag(found: Found, model: FoundModel, word: Word, values: list[Word], dotted: dict[str, Any]) -> None:
    name = flag_name(word.text, ALIASES)
    spelled, equals, given = word.text.partition("=")
    said = [given] if equals else [value.text for value in values]
    if name == "--speculative-config" and "." in spelled:
        dotted[spelled.partition(".")[2]] = _typed(said[0]) if said else True
        return
    reader = _KEYS.get(name)
    if reader is not None:
        if not said or not said[0]:
            found.note(word.place, f"{name} has no value")
        elif any("$" in value for value in said) and name not in ("--api-key", "--hf-token"):
            found.note(word.place, f"{name} {said[0]}: what the $variable is, is not known here; write the value")
        else:
            reader(found, model, word, said)
        return
    if name in _SETS_ITSELF:
        if _SETS_ITSELF[name]:
            found.note(word.place, f"{name} is left out: {_SETS_ITSELF[name]}")
        return
    secret = is_secret(name.lstrip("-").replace("-", "_"), " ".join(said)) or any(map(holds_secret, said))
    if secret:
        found.note(word.place, f"{name} is left out: a secret does not belong in a command line, nor in fleet.yaml")
        return
    if any("$" in value for value in said):
        found.note(word.place, f"{name}: nothing replaces a $variable in fleet.yaml; write the value")
    model.arguments += [word.text, *(value.text for value in values)]


def _typed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def whole(text: str) -> int | None:
    """A whole number as vLLM takes it: ``32768``, ``32k`` (thousands), ``32K`` (times 1,024); None for none."""
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]+)?)([kKmMgG]?)", text.replace("_", ""))
    if match is None or (not match[2] and "." in match[1]):
        return None
    return int(float(match[1]) * _HUMAN[match[2]])


Reader = Callable[[Found, FoundModel, Word, list[str]], None]


def _count(name: str, take: Callable[[FoundModel, int], None]) -> Reader:
    def read(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
        number = whole(said[0])
        if number is None or number < 1:
            found.note(word.place, f"{name} {said[0]} is no whole number from 1 on")
        else:
            take(model, number)

    return read


def _text(key: str) -> Reader:
    def read(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
        model.settings[key] = Setting(said[0])

    return read


def _weights(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    model.settings["weights"] = Setting(said[0])


def _served(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    model.settings["served_as"] = Setting(list(dict.fromkeys(said)))


def _context(model: FoundModel, number: int) -> None:
    model.settings["context"] = Setting(number)


def _share(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    try:
        share = float(said[0])
    except ValueError:
        share = 0.0
    if 0 < share <= 1:
        model.share = share
    else:
        found.note(word.place, f"--gpu-memory-utilization {said[0]} is no share from 0 to 1")


def _cache_type(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    if said[0] != "auto":
        model.settings["kv_cache_dtype"] = Setting(said[0])


def _parallel(model: FoundModel, number: int) -> None:
    model.ranks *= number


def _pipeline(model: FoundModel, number: int) -> None:
    model.ranks *= number
    model.pipeline = model.pipeline or number > 1


def _set(attribute: str) -> Callable[[FoundModel, int], None]:
    def take(model: FoundModel, number: int) -> None:
        setattr(model, attribute, number)

    return take


def _data_parallel(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    if said[0] != "1":
        found.note(
            word.place, f"--data-parallel-size {said[0]} is left out: copies: has one engine on each box instead"
        )


def _backend(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    if said[0] not in ("mp", "uni"):
        found.note(word.place, f"--distributed-executor-backend {said[0]} is left out: ranks are started without it")


def _speculative(found: Found, model: FoundModel, word: Word, text: str) -> None:
    try:
        config = json.loads(text)
    except ValueError:
        config = None
    if not isinstance(config, dict):
        found.note(word.place, f"--speculative-config is left out: {text[:60]} is no JSON object")
    elif not isinstance(config.get("method"), str) or not isinstance(config.get("num_speculative_tokens"), int):
        found.note(word.place, "--speculative-config is left out: speculative: needs method and num_speculative_tokens")
    else:
        model.settings["speculative"] = Setting(config)


def _speculative_flag(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    _speculative(found, model, word, " ".join(said))


def _api_key(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    text = "--api-key is left out: the proxy checks clients' keys; write proxy: api_keys: {NAME: {env: VARIABLE}}"
    found.note(word.place, text)


def _hub_token(found: Found, model: FoundModel, word: Word, said: list[str]) -> None:
    model.environment["HF_TOKEN"] = Setting({"env": "HF_TOKEN"}, f"its value stands in {word.place}")
    found.note(word.place, "--hf-token is a secret: it became HF_TOKEN, of which fleet.yaml says where it is")


_KEYS: dict[str, Reader] = {
    "--model": _weights,
    "--served-model-name": _served,
    "--revision": _text("revision"),
    "--max-model-len": _count("--max-model-len", _context),
    "--gpu-memory-utilization": _share,
    "--kv-cache-dtype": _cache_type,
    "--kv-cache-memory-bytes": _count("--kv-cache-memory-bytes", _set("cache")),
    "--max-num-seqs": _count("--max-num-seqs", _set("concurrency")),
    "--port": _count("--port", _set("port")),
    "--master-port": _count("--master-port", _set("master_port")),
    "--nnodes": _count("--nnodes", lambda model, number: None),
    "--tensor-parallel-size": _count("--tensor-parallel-size", _parallel),
    "--pipeline-parallel-size": _count("--pipeline-parallel-size", _pipeline),
    "--data-parallel-size": _data_parallel,
    "--distributed-executor-backend": _backend,
    "--speculative-config": _speculative_flag,
    "--api-key": _api_key,
    "--hf-token": _hub_token,
}
