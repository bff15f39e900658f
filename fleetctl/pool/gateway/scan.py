"""What a gateway looks for in a body while its bytes pass by. Nothing is parsed or kept.

A scanner is fed the body in pieces, however it is cut, and notes the values of :data:`KEYS` where they stand at the top
level: never inside a nested value or a string. Strings, nested values and long runs of numbers are passed over by
regular expressions, in C, so that the bytes cost little. A body that is broken is left for the engine to refuse; a
scanner only stops finding things.
"""

from __future__ import annotations

import re
from typing import Protocol

KEYS = frozenset({"model", "stream", "max_tokens", "max_completion_tokens", "n"})
MOST_VALUE = 1024
"""Bytes of a value that is noted; a longer one is no model's name."""
MOST_DEPTH = 512
"""Levels of nesting; deeper ones no engine reads."""

IMAGE = re.compile(rb"data:image|\x89PNG|\xff\xd8\xff|GIF8|RIFF....WEBP", re.DOTALL)
"""What a string or bytes begin with that are an image: a data URL, or the signature of PNG, JPEG, GIF or WebP."""
IMAGE_HEAD = 12
"""Bytes with which that is decided."""

Value = str | int | float | bool | None


class Scanner(Protocol):
    """What reads a body as it passes."""

    found: dict[str, Value]
    """Values of the keys so far. Of a key that comes twice the last counts, as it does for engines."""
    images: int
    """Images in it, as far as they are within the body: of one that is only linked to nothing is known."""
    image_bytes: int
    """About how many bytes of the body they are."""
    broken: bool
    """The body is not of its kind, or nested too deep: nothing more will be found."""

    def feed(self, data: bytes) -> None:
        """The next bytes."""
        ...
