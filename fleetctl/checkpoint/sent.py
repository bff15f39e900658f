"""A model's folder on a box, as far as the box sent it: sizes of all files, and the beginnings of those that tell."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any

from fleetctl.errors import SpecError


class Sent:
    """Files of a folder on a box; ``told`` is what the op ``checkpoint_files`` returned."""

    def __init__(self, where: str, told: Mapping[str, Any]) -> None:
        self.where = where
        self._sizes: dict[str, int] = dict(told["sizes"])
        self._begins = {name: zlib.decompress(base64.b64decode(text)) for name, text in told["begins"].items()}

    def sizes(self) -> dict[str, int]:
        return self._sizes

    def read(self, name: str, start: int, length: int) -> bytes:
        begin = self._begins.get(name, b"")
        if start + length > len(begin) and len(begin) < self._sizes.get(name, 0):
            raise SpecError(f"{self.where}/{name}: not all of it came from the box")
        return begin[start : start + length]
