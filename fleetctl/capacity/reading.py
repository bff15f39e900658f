"""Numbers and words out of a config.json that may be wrong in any way. Every complaint names the key."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fleetctl.errors import SpecError

LARGEST = 2**40
"""No count or size in a config.json is larger than this; anything above is damage."""


class Section:
    """One object of a config.json, and where it stands in the file. Reading raises SpecError with the key's path."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def has(self, *names: str) -> bool:
        """Whether one of the keys is there and not null."""
        return any(self.values.get(name) is not None for name in names)

    def whole(self, *names: str, default: int | None = None, least: int = 0, most: int = LARGEST) -> int:
        """The first of ``names`` that is there, as a whole number; ``default`` when none is. SpecError otherwise."""
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if isinstance(value, bool) or not isinstance(value, int):
                raise self._wrong(name, value, "a whole number")
            if not least <= value <= most:
                raise self._wrong(name, value, f"between {least:,} and {most:,}")
            return value
        if default is None:
            raise SpecError(
                f"{self.where}: {' or '.join(names)} is missing",
                hint="without it the memory cannot be computed; is this the config.json of a language model?",
            )
        return default

    def maybe(self, *names: str, least: int = 0, most: int = LARGEST) -> int | None:
        """Like ``whole``, but None when none of the keys is there."""
        return self.whole(*names, least=least, most=most) if self.has(*names) else None

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def text(self, name: str, default: str = "") -> str:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self._wrong(name, value, "a word")
        return value

    def words(self, name: str) -> tuple[str, ...] | None:
        """A list of words; None when the key is not there."""
        value = self._list(name)
        if value is not None and not all(isinstance(one, str) for one in value):
            raise self._wrong(name, value, "a list of words")
        return None if value is None else tuple(value)

    def wholes(self, name: str) -> tuple[int, ...] | None:
        """A list of whole numbers; None when the key is not there."""
        value = self._list(name)
        if value is None:
            return None
        for one in value:
            if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one <= LARGEST:
                raise self._wrong(name, value, "a list of whole numbers")
        return tuple(value)

    def section(self, name: str) -> Section | None:
        """An object inside this one; None when the key is not there."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self._wrong(name, value, "an object")
        return Section(value, f"{self.where}: {name}")

    def _list(self, name: str) -> Sequence[Any] | None:
        value = self.values.get(name)
        if value is not None and (not isinstance(value, list | tuple) or len(value) > 100_000):
            raise self._wrong(name, value, "a list")
        return value

    def _wrong(self, name: str, value: object, wanted: str) -> SpecError:
        shown = repr(value)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        return SpecError(
            f"{self.where}: {name} is {shown}, not {wanted}", hint="the file is damaged, or not a model's configuration"
        )


def parse_config(text: str | bytes, source: str) -> Section:
    """The top of a config.json. ``source`` is what messages call it. Raises SpecError when it is not an object."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{source}: not JSON: {error}", hint="the file is cut off or damaged; fetch it again") from None
    if not isinstance(document, dict):
        raise SpecError(f"{source}: not a JSON object", hint="is this the config.json of a model?")
    return Section(document, source)
