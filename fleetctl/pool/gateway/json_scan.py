"""The keys at the top of a JSON object, as its bytes pass by."""

from __future__ import annotations

import json
import re

from fleetctl.pool.gateway.scan import IMAGE, IMAGE_HEAD, KEYS, MOST_DEPTH, MOST_VALUE, Value

_IN_STRING = re.compile(rb'[^"\\]*(?:\\.[^"\\]*){0,1000}', re.DOTALL)
"""The inside of a string, up to its end or the end of the bytes."""
_PLAIN = re.compile(rb'[^"\[\]{}]*(?:(?:"[^"\\]{0,64}"|\[[^"\[\]{}]*\]|\{[^"\[\]{}]*\})[^"\[\]{}]*){0,500}')
"""Many simple values in a row, as far as nothing is nested; long strings are faster to search than to match."""
_TOP = re.compile(rb'["\[\]{},:]')
_FIELD = re.compile(
    rb'\s*+(?:,\s*+)?+"([^"\\]{0,64})"\s*:\s*(?:("[^"\\]{0,1000}"|[-+.\w]{1,40})\s*(?=[,}])|(?=["\[{]))'
)
"""A key with a simple value, or a key before a value of another kind: nearly all that stands at the top level."""


class JsonScanner:
    """The keys of a JSON object."""

    def __init__(self) -> None:
        self.found: dict[str, Value] = {}
        self.images = self.image_bytes = 0
        self.broken = False
        self._depth = 0
        self._in_string = False
        self._escaped = False
        """The bytes ended between a backslash and what it stands before."""
        self._head = b""
        """The first bytes of the string that is passing by."""
        self._is_image = False
        self._is_key = True
        self._key = ""
        self._kept: bytearray | None = None
        """Bytes of the key or of the wanted value that is passing by; None: not wanted."""

    def feed(self, data: bytes) -> None:
        position, end = 0, len(data)
        while position < end and not self.broken:
            if self._in_string:
                position = self._string(data, position)
            elif self._depth > 1:
                position = self._nested(data, position)
            else:
                position = self._top(data, position)

    def _string(self, data: bytes, position: int) -> int:
        start = position
        if self._escaped:
            position += 1
            self._escaped = False
        quote = data.find(b'"', position)
        if quote < 0 and not data.endswith(b"\\"):
            position = len(data)
        elif quote == position or (quote > 0 and data[quote - 1] != 0x5C):
            position = quote
        else:
            position = _IN_STRING.match(data, position).end()  # type: ignore[union-attr]
        if position < len(data) and data[position] == 0x22:
            position += 1
            self._in_string = False
        elif position == len(data) - 1 and data[position] == 0x5C:
            position += 1
            self._escaped = True
        self._look_for_image(data, start, position)
        self._keep(data, start, position)
        if not self._in_string and self._depth == 1 and self._is_key:
            self._key = self._named()
            self._kept = None
        return position

    def _look_for_image(self, data: bytes, start: int, end: int) -> None:
        if self._is_image:
            self.image_bytes += end - start
        elif len(self._head) < IMAGE_HEAD:
            self._head += data[start : min(end, start + IMAGE_HEAD - len(self._head))]
            if len(self._head) == IMAGE_HEAD and IMAGE.match(self._head):
                self._is_image = True
                self.images += 1
                self.image_bytes += end - start

    def _begin_string(self) -> None:
        self._in_string, self._head, self._is_image = True, b"", False

    def _nested(self, data: bytes, position: int) -> int:
        position = _PLAIN.match(data, position).end()  # type: ignore[union-attr]
        if position == len(data):
            return position
        letter = data[position]
        if letter == 0x22:
            self._begin_string()
        elif letter in b"[{":
            self._deeper()
        elif letter in b"]}":
            self._depth -= 1
        return position + 1

    def _top(self, data: bytes, position: int) -> int:
        if self._depth == 1 and self._is_key and self._kept is None and (field := _FIELD.match(data, position)):
            self._key = field[1].decode(errors="replace")
            self._is_key, self._kept = False, bytearray(field[2] or b"") if self._key in KEYS else None
            if field[2]:
                self._note()
                self._is_key = True
            return field.end()
        found = _TOP.search(data, position)
        until = found.start() if found else len(data)
        self._keep(data, position, until)
        if found is None:
            return until
        letter = data[until]
        if letter == 0x22:
            self._begin_string()
            if self._is_key:
                self._kept = bytearray()
            self._keep(data, until, until + 1)
        elif letter == 0x7B and self._depth == 0:
            self._depth = 1
        elif self._depth == 0:
            self.broken = True
        elif letter == 0x3A:
            self._is_key = False
            self._kept = bytearray() if self._key in KEYS else None
        elif letter in b",}":
            self._note()
            self._is_key = True
            self.broken = letter == 0x7D  # the object has ended
        else:
            self._kept = None  # a nested value is no name
            if letter == 0x5D:
                self.broken = True
            self._deeper()
        return until + 1

    def _deeper(self) -> None:
        self._depth += 1
        self.broken = self.broken or self._depth > MOST_DEPTH

    def _keep(self, data: bytes, start: int, end: int) -> None:
        if self._kept is not None:
            if len(self._kept) + end - start > MOST_VALUE:
                self._kept = None
            else:
                self._kept += data[start:end]

    def _named(self) -> str:
        value = self._read()
        return value if isinstance(value, str) else ""

    def _note(self) -> None:
        if self._key in KEYS and not self._is_key:
            self.found[self._key] = self._read()
        self._key, self._kept = "", None

    def _read(self) -> Value:
        """The value that was kept, which is a string or a number of few bytes."""
        kept = bytes(self._kept or b"")
        try:
            if kept[:1] == b'"' == kept[-1:] and b"\\" not in kept:
                return kept[1:-1].decode()
            value = json.loads(kept)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, Value) else None
