"""What was, as far back as the widest screen shows it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from fleetctl.watch.sample import Copy, Sample

LENGTH = 400  # moments; more than a terminal is wide


class History:
    """A ring of the last figures of each copy and of all together; None is what was not known."""

    def __init__(self, length: int = LENGTH) -> None:
        self._length = length
        self.generation: deque[float | None] = deque(maxlen=length)
        """Tokens/s of all copies that were known."""
        self.waiting: deque[float | None] = deque(maxlen=length)
        """Requests that waited, in the engines and in the proxy's shared queue."""
        self._of: dict[str, deque[float | None]] = {}
        self._idle: dict[str, int] = {}

    def add(self, sample: Sample) -> None:
        """Remember a sample. Copies that are not in it any more are forgotten."""
        before = len(self.generation)
        self.generation.append(sample.total.generation_rate)
        self.waiting.append(waiting_of(sample))
        names = {copy.id for copy in sample.copies}
        self._of = {name: ring for name, ring in self._of.items() if name in names}
        self._idle = {name: count for name, count in self._idle.items() if name in names}
        for copy in sample.copies:
            if copy.id not in self._of:  # it is new: before, nothing was known of it
                self._of[copy.id] = deque([None] * min(before, self._length), maxlen=self._length)
            self._of[copy.id].append(copy.figures.generation_rate if copy.known else None)
            self._idle[copy.id] = self._idle.get(copy.id, 0) + 1 if _stuck(copy) else 0

    def rate_of(self, copy: str) -> Sequence[float | None]:
        """Tokens/s of a copy, the last moment last."""
        return self._of.get(copy, ())

    def stuck(self, copy: str) -> bool:
        """In the last two samples requests waited on it, none ran, and no token was read or made."""
        return self._idle.get(copy, 0) >= 2

    def top(self) -> float:
        """The highest rate of a single copy that is remembered, so that bars of copies can be compared."""
        return max((value for ring in self._of.values() for value in ring if value is not None), default=0.0)


def waiting_of(sample: Sample) -> float | None:
    """Requests that wait: in the engines that are known, and in the proxy's queue. None when neither is known."""
    known = [value for value in (sample.total.waiting, sample.proxy.waiting) if value is not None]
    return float(sum(known)) if known else None


def _stuck(copy: Copy) -> bool:
    figures = copy.figures
    moved = (figures.prompt_rate, figures.generation_rate)
    return copy.known and bool(figures.waiting) and figures.running == 0 and moved == (0, 0)
