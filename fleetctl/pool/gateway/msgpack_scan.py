"""The keys at the top of a MessagePack map, as its bytes pass by (https://github.com/msgpack/msgpack/blob/master/spec.md)."""

from __future__ import annotations

import re

import msgpack

from fleetctl.pool.gateway.scan import IMAGE, IMAGE_HEAD, KEYS, MOST_DEPTH, MOST_VALUE, Value

_SCALARS = re.compile(
    rb"(?:[\x00-\x7f\xc0\xc2\xc3\xe0-\xff]|[\xcc\xd0].|[\xcd\xd1]..|[\xca\xce\xd2]....|[\xcb\xcf\xd3]........){64}",
    re.DOTALL,
)
"""64 numbers, truth values or nils in a row."""
_FIXED = {0xC0: 1, 0xC2: 1, 0xC3: 1, 0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3}
_FIXED |= {0xD2: 5, 0xD3: 9, 0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18}
"""First byte of a value → all of its bytes."""
_SIZED = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)}
_SIZED |= {0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}
"""First byte of a value → bytes of its length, and bytes that it has beside those that the length counts."""
_MANY = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""First byte of an array or a map → bytes of its length, and values per entry."""


class MessagePackScanner:
    """The keys of a MessagePack map."""

    def __init__(self) -> None:
        self.found: dict[str, Value] = {}
        self.images = self.image_bytes = 0
        self.broken = False
        self._rest = b""
        """Bytes that cannot be judged before more have come: part of a head, of a key or of a wanted value."""
        self._skip = 0
        """Bytes still to come of a value that is passed over."""
        self._left: list[int] = []
        """Values still to come, per level; first those of the map itself."""
        self._key = ""

    def feed(self, data: bytes) -> None:
        if self._skip >= len(data):
            self._skip -= len(data)
            return
        position, self._skip = self._skip, 0
        data, self._rest = self._rest + data, b""
        while not self.broken and position < len(data):
            taken = self._take(data, position)
            if taken == 0:
                self._rest = data[position:]
                return
            position += taken
        self._skip = max(0, position - len(data))

    def _take(self, data: bytes, position: int) -> int:
        """Take one value, or the head of an array or a map; its bytes, 0 when there are too few to judge it."""
        if len(self._left) > 1 and self._left[-1] > 64 and (block := _SCALARS.match(data, position)):
            self._left[-1] -= 64
            return block.end() - position
        size = _size(data, position)
        if size is None:
            return _head(data, position) and self._open(data, position)
        if size == 0 or not self._left:  # cut off within its head, or no map at all
            self.broken = not self._left
            return 0
        if len(self._left) == 1 and size <= MOST_VALUE:
            is_key = self._left[0] % 2 == 0
            if is_key or self._key in KEYS:
                if position + size > len(data):
                    return 0
                value = _unpack(data[position : position + size])
                if not is_key:
                    self.found[self._key] = value
                self._key = value if is_key and isinstance(value, str) else ""
        if size > MOST_VALUE and data[position] in _SIZED:
            at = position + 1 + sum(_SIZED[data[position]])
            if len(data) < at + IMAGE_HEAD:
                return 0
            if IMAGE.match(data, at):
                self.images += 1
                self.image_bytes += size
        self._left[-1] -= 1
        self._close()
        return size

    def _open(self, data: bytes, position: int) -> int:
        first, width = data[position], _head(data, position)
        if first in _MANY:
            count = int.from_bytes(data[position + 1 : position + width], "big") * _MANY[first][1]
        else:
            count = (first & 0x0F) * (2 if first & 0xF0 == 0x80 else 1)
        if self._left:
            if len(self._left) == 1 and self._key in KEYS:
                self.found[self._key] = None
            self._left[-1] -= 1
        elif first not in (0xDE, 0xDF) and first & 0xF0 != 0x80:
            self.broken = True
        self._left.append(count)
        self.broken = self.broken or len(self._left) > MOST_DEPTH
        self._close()
        return width

    def _close(self) -> None:
        while self._left and self._left[-1] == 0:
            self._left.pop()
        self.broken = self.broken or not self._left  # the map has ended


def _size(data: bytes, position: int) -> int | None:
    """Bytes of the value at a position, 0: not all of its head is here; None: an array, a map, or nothing known."""
    first = data[position]
    if first < 0x80 or first >= 0xE0:
        return 1
    if 0xA0 <= first < 0xC0:
        return 1 + (first & 0x1F)
    if first in _SIZED:
        width, more = _SIZED[first]
        if position + 1 + width > len(data):
            return 0
        return 1 + width + more + int.from_bytes(data[position + 1 : position + 1 + width], "big")
    return _FIXED.get(first)


def _head(data: bytes, position: int) -> int:
    """Bytes of the head of an array or a map; 0: not all of it is here."""
    width = 1 + _MANY.get(data[position], (0, 0))[0]
    return width if position + width <= len(data) else 0


def _unpack(data: bytes) -> Value:
    try:
        value = msgpack.unpackb(data)
        value = value.decode() if isinstance(value, bytes) else value
    except ValueError:  # no UTF-8, or a time that there is not
        return None
    return value if isinstance(value, Value) else None
