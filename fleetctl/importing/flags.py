"""Flags of an engine into an entry: what fleet.yaml has a key for goes there, the rest stays an argument."""

from __future__ import annotations

import json
import re
from typing import Any

from fleetctl.errors import SpecError
from fleetctl.importing import readers
from fleetctl.importing.dialect import Dialect
from fleetctl.importing.found import Found, FoundModel, Setting, Word, is_secret
from fleetctl.importing.secrecy import holds_secret

MOST_WORDS = 2000
_NUMBER = re.compile(r"-\d+(\.\d+)?")
_DOTTED = "--speculative-config"  # its keys may come as flags of their own
_YES = ("1", "on", "true", "yes", "enabled")


def read_flags(found: Found, model: FoundModel, words: list[Word], dialect: Dialect) -> None:
    """Take all words behind the program: the model, and flags with their values. Variables stand in for flags."""
    if len(words) > MOST_WORDS:
        raise SpecError(f"{words[0].place}: a command of more than {MOST_WORDS:,} words is not read")
    model.runtime = dialect.runtime
    words = [*_from_environment(found, model, words, dialect), *words]
    at = 0
    dotted: dict[str, Any] = {}
    while at < len(words):
        word = words[at]
        at += 1
        if not _is_flag(word.text):
            _positional(found, model, word, dialect)
            continue
        values = []
        while "=" not in word.text and at < len(words) and not _is_flag(words[at].text):
            values.append(words[at])
            at += 1
            following = words[at] if at < len(words) else None
            if dialect.name(word.text) in dialect.several:
                continue
            if dialect.positional and _begins_positional(model, following):
                break
        _flag(found, model, word, values, dotted, dialect)
    if dotted:
        dialect.keys[_DOTTED](found, model, word, [json.dumps(dotted)])
    dialect.closing(found, model)


def _from_environment(found: Found, model: FoundModel, words: list[Word], dialect: Dialect) -> list[Word]:
    """Flags in place of the variables that say the same; those that the command has itself win."""
    there = {dialect.name(word.text) for word in words if _is_flag(word.text)}
    made: list[Word] = []
    for variable, flag in dialect.variables.items():
        setting = model.environment.get(variable)
        if setting is None or not isinstance(setting.value, str):
            continue
        del model.environment[variable]
        if flag in there or (flag in dialect.bare and setting.value.lower() not in _YES):
            continue
        made.append(Word(flag if flag in dialect.bare else f"{flag}={setting.value}", model.place))
    return made


def _is_flag(text: str) -> bool:
    return text.startswith("-") and len(text) > 1 and not _NUMBER.fullmatch(text) and " " not in text.partition("=")[0]


def _begins_positional(model: FoundModel, following: Word | None) -> bool:
    """The model may stand behind flags: after one value, where nothing else has named it yet."""
    return "weights" not in model.settings and following is not None and not _is_flag(following.text)


def _positional(found: Found, model: FoundModel, word: Word, dialect: Dialect) -> None:
    if not dialect.positional:
        found.note(word.place, f"{_shown(word.text)} is one word too many: it belongs to no flag")
    elif "weights" not in model.settings:
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
        elif reader in readers.TAKE_SECRETS:
            reader(found, model, word, said)
        elif any(map(holds_secret, said)):
            found.note(word.place, f"{name} is left out: what it was given looks like a secret")
        elif any("$" in value for value in said):
            found.note(word.place, f"{name} {said[0]}: what the $variable is, is not known here; write the value")
        else:
            reader(found, model, word, said)
            for more in values[0 if name in dialect.bare else 1 :] if name not in {_DOTTED, *dialect.several} else ():
                found.note(more.place, f"{_shown(more.text)} is one word too many: {name} has its value")
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
