"""Flags of an engine into an entry: what fleet.yaml has a key for goes there, the rest stays an argument."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fleetctl.engine.runtimes.flags import flag_name
from fleetctl.engine.runtimes.known import RUNTIMES
from fleetctl.errors import SpecError
from fleetctl.importing.found import Found, FoundModel, Setting, Word, is_secret
from fleetctl.importing.secrecy import holds_secret

MOST_WORDS = 2000
_NUMBER = re.compile(r"-\d+(\.\d+)?")
_DOTTED = "--speculative-config"  # its keys may come as flags of their own
Reader = Callable[[Found, FoundModel, Word, list[str]], None]


@dataclass(frozen=True)
class Dialect:
    """How one kind of engine spells things. ``keys`` has a reader for each flag that fleet.yaml has a key for.

    ``left_out`` are flags that fleetctl sets itself, each with what is to be told of that ("" for nothing); ``several``
    are those with any number of values, ``bare`` those with a key that have none.
    """

    runtime: str
    keys: Mapping[str, Reader]
    left_out: Mapping[str, str]
    several: frozenset[str] = frozenset()
    bare: frozenset[str] = frozenset()

    def name(self, word: str) -> str:
        """The one name of a flag."""
        return flag_name(word, RUNTIMES[self.runtime].aliases)


def read_flags(found: Found, model: FoundModel, words: list[Word], dialect: Dialect) -> None:
    """Take all words behind the program: the model, and flags with their values."""
    if len(words) > MOST_WORDS:
        raise SpecError(f"{words[0].place}: a command of more than {MOST_WORDS:,} words is not read")
    model.runtime = dialect.runtime
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
            following = words[at] if at < len(words) else None
            if dialect.name(word.text) not in dialect.several and _begins_positional(model, following):
                break
        _flag(found, model, word, values, dotted, dialect)
    if dotted:
        dialect.keys[_DOTTED](found, model, word, [json.dumps(dotted)])


def _is_flag(text: str) -> bool:
    return text.startswith("-") and len(text) > 1 and not _NUMBER.fullmatch(text) and " " not in text.partition("=")[0]


def _begins_positional(model: FoundModel, following: Word | None) -> bool:
    """The model may stand behind flags: after one value, where nothing else has named it yet."""
    return "weights" not in model.settings and following is not None and not _is_flag(following.text)


def _positional(found: Found, model: FoundModel, word: Word) -> None:
    if "weights" not in model.settings:
        model.settings["weights"] = Setting(word.text)
    else:
        found.note(word.place, f"{_shown(word.text)} is one word too many: the model is named already")


def _shown(text: str) -> str:
    return "a word" if holds_secret(text) else repr(text)


def _flag(
    found: Found, model: FoundModel, word: Word, values: list[Word], dotted: dict[str, Any], dialect: Dialect
) -> None:
    name = dialect.name(word.text)
    spelled, equals, given = word.text.partition("=")
    said = [given] if equals else [value.text for value in values]
    if name == _DOTTED and "." in spelled and name in dialect.keys:
        dotted[spelled.partition(".")[2]] = _typed(said[0]) if said else True
        return
    reader = dialect.keys.get(name)
    if reader is not None:
        if (not said or not said[0]) and name not in dialect.bare:
            found.note(word.place, f"{name} has no value")
        elif any("$" in value for value in said) and name not in ("--api-key", "--hf-token"):
            found.note(word.place, f"{name} {said[0]}: what the $variable is, is not known here; write the value")
        else:
            reader(found, model, word, said)
        return
    if name in dialect.left_out:
        if dialect.left_out[name]:
            found.note(word.place, f"{name} is left out: {dialect.left_out[name]}")
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
    except (ValueError, RecursionError):
        return text
