"""One request to an engine and what came back, kept for whoever has to find out why a gate failed."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

LONGEST = 256 * 1024  # characters of a request, and bytes of an answer, that are kept; of longer ones both ends


@dataclass
class Exchange:
    """``body`` is the JSON of the request. The answer is told piece by piece, as it comes; ``status`` 0: none came.

    No header is kept, and so no key.
    """

    method: str
    path: str
    body: Any = None
    status: int = 0
    wrong: str = ""
    size: int = 0
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    _first: bytearray = field(default_factory=bytearray, repr=False)
    _last: bytearray = field(default_factory=bytearray, repr=False)

    def hear(self, piece: bytes) -> None:
        """A piece of the answer. Of one that is too long its beginning and its end stay."""
        self.size += len(piece)
        self.seconds = time.monotonic() - self.began
        room = LONGEST // 2 - len(self._first)
        self._first += piece[: max(0, room)]
        self._last += piece[max(0, room) :]
        del self._last[: -LONGEST // 2]

    def over(self, wrong: str = "") -> None:
        """It ended; ``wrong`` says what was wrong with it."""
        self.seconds = time.monotonic() - self.began
        self.wrong = wrong or self.wrong

    def told(self) -> dict[str, Any]:
        """``request`` and ``response`` as JSON values, each with its text and its whole length."""
        asked = "" if self.body is None else json.dumps(self.body, ensure_ascii=False, indent=1)
        kept = len(self._first) + len(self._last)
        text = self._first.decode("utf-8", "replace")
        text += _left_out(self.size - kept, "bytes") if self.size > kept else ""
        text += self._last.decode("utf-8", "replace")
        return {
            "request": {"method": self.method, "path": self.path, "length": len(asked), "text": _ends(asked)},
            "response": {
                "status": self.status,
                "seconds": round(self.seconds, 3),
                "length": self.size,
                "text": text,
                "wrong": self.wrong,
            },
        }


def _ends(text: str) -> str:
    """A text, or both ends of one that is too long."""
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return text[:half] + _left_out(len(text) - 2 * half, "characters") + text[-half:]


def _left_out(count: int, what: str) -> str:
    return f"\n[… {count:,} {what} left out …]\n"
