"""What a worker remembers of requests that it does not hold: bounded, and gone after a while."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import NamedTuple


class Returned(NamedTuple):
    """How often a request was given back without blame, and how many engines died of it."""

    times: int = 0
    broken: int = 0


class Seen:
    """Requests whose clients have gone, and requests that workers have given back."""

    def __init__(self, most: int = 20_000, seconds: float = 600.0) -> None:
        self._most = most
        self._seconds = seconds
        self._cancelled: OrderedDict[str, float] = OrderedDict()
        self._returned: OrderedDict[str, tuple[Returned, float]] = OrderedDict()

    def cancel(self, key: str) -> None:
        """Its client has gone."""
        self._cancelled[key] = time.monotonic()
        self._cancelled.move_to_end(key)
        while len(self._cancelled) > self._most:
            self._cancelled.popitem(last=False)

    def cancelled(self, key: str) -> bool:
        """Whether its client has gone."""
        at = self._cancelled.get(key)
        return at is not None and time.monotonic() - at < self._seconds

    def give_back(self, key: str, broken: int) -> None:
        """Some worker gave it back."""
        before = self.returned(key)
        self._returned[key] = (Returned(before.times + 1, max(before.broken, broken)), time.monotonic())
        self._returned.move_to_end(key)
        while len(self._returned) > self._most:
            self._returned.popitem(last=False)

    def returned(self, key: str) -> Returned:
        """How often it was given back."""
        found, at = self._returned.get(key, (Returned(), 0.0))
        return found if time.monotonic() - at < self._seconds else Returned()
