"""Command-line flags in layers: what comes later replaces what came before, flag by flag."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_NUMBER = re.compile(r"-\d+(\.\d+)?")


def flag_name(word: str, aliases: Mapping[str, str]) -> str:
    """The one name of a flag, however it is spelled.

    ``--max_model_len=5``, ``--no-enable-x`` and ``--compilation-config.level`` become ``--max-model-len``,
    ``--enable-x`` and ``--compilation-config``; other spellings are looked up in ``aliases``.
    """
    name = word.partition("=")[0].partition(".")[0].replace("_", "-")
    if name in aliases:
        return aliases[name]
    return "--" + name[5:] if name.startswith("--no-") else name


def split_flags(words: Iterable[str]) -> list[list[str]]:
    """Words in groups: a flag and the values that follow it. Values before the first flag are a group."""
    groups: list[list[str]] = []
    for word in words:
        is_flag = word.startswith("-") and word != "-" and not _NUMBER.fullmatch(word)
        if is_flag or not groups:
            groups.append([word])
        else:
            groups[-1].append(word)
    return groups


def flag_values(words: Iterable[str], aliases: Mapping[str, str]) -> dict[str, str]:
    """Flag → its value; "" for one that is only there, "no" for ``--no-…``. Of several values the first."""
    found = {}
    for group in split_flags(words):
        word, _, value = group[0].partition("=")
        given = value or (group[1] if len(group) > 1 else "")
        found[flag_name(word, aliases)] = "no" if word.startswith("--no-") else given
    return found


def layer_flags(
    layers: Iterable[Iterable[str]], aliases: Mapping[str, str], *, repeatable: frozenset[str] = frozenset()
) -> list[str]:
    """Join layers of arguments; a flag of a later layer replaces the same flag of every earlier one.

    Within one layer nothing is removed, nor are flags in ``repeatable`` ever.
    """
    kept: list[list[str]] = []
    for layer in layers:
        groups = split_flags(layer)
        names = {flag_name(group[0], aliases) for group in groups} - repeatable
        kept = [group for group in kept if flag_name(group[0], aliases) not in names] + groups
    return [word for group in kept for word in group]
