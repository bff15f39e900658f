"""Secrets into files, at the last moment and on the way to the box only."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from urllib.parse import quote

from fleetctl.errors import SpecError
from fleetctl.render.release import File

_PLACE = re.compile(r"@secret:([A-Za-z0-9_.-]+)@")


class Filler:
    """Reads each secret once per command, however many files it is in. Safe to call from any thread."""

    def __init__(self) -> None:
        self._read: dict[str, str] = {}
        self._lock = threading.Lock()

    def __call__(self, file: File) -> str:
        """The content of a file with its secrets in it. Raises SpecError when one is not to be had."""

        words: dict[str, str] = {}

        def put(match: re.Match[str]) -> str:
            if match[1] not in file.secrets:
                return match[0]  # no placeholder, but text that looks like one
            secret = file.secrets[match[1]]
            with self._lock:
                key = secret.model_dump_json()
                if key not in self._read:
                    self._read[key] = secret.read()
                value = self._read[key]
            if "\n" in value:
                raise SpecError(f"the secret in {secret.where()} has a line break in it and cannot go into {file.path}")
            if file.quoting == "word":
                _refuse_as_key(value, secret.where())
                other = words.setdefault(value, match[1])
                if other != match[1]:
                    raise SpecError(f"the keys {other} and {match[1]} have the same value: give each its own")
            return _QUOTED.get(file.quoting, str)(value)

        return _PLACE.sub(put, file.content)


def _refuse_as_key(value: str, where: str) -> None:
    faults = {
        "is empty": not value,
        "begins with #": value.startswith("#"),
        "has white space in it": any(character.isspace() for character in value),
    }
    for fault, present in faults.items():
        if present:
            raise SpecError(f"the secret in {where} cannot be a key: it {fault}")


def _as_environment_value(value: str) -> str:
    """Quoted for systemd's EnvironmentFile=, where backslash, double quote, dollar and backtick are special."""
    escaped = re.sub(r'([\\"$`])', r"\\\1", value)
    return f'"{escaped}"'


_QUOTED: dict[str, Callable[[str], str]] = {
    "environment": _as_environment_value,
    "string": lambda value: json.dumps(value, ensure_ascii=False),
    "url": lambda value: quote(value, safe=""),
}
