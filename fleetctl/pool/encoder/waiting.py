"""Inputs that wait, and which of them make the next batch. Pure.

*Whose turn*: inputs are served by fair queueing. Each is marked with the work before it in its own request, counted
from the work that is at hand when the request comes (self-clocked fair queueing; Golestani, INFOCOM 1994). A request of
one input so does not wait for all of another's 2000.

*What goes with it*: rows of a batch are made equal in length, and what fills them is computed for nothing. An input
joins a batch where that costs less than a batch of its own would, which is :attr:`Waiting.start` tokens.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any


@dataclass(slots=True, eq=False)
class Input:
    """One input of a request."""

    tokens: Sequence[int]
    owner: Any
    """The request that it belongs to."""
    index: int
    """Which of the request's inputs it is."""
    since: float
    mark: int = 0
    taken: bool = False


class Waiting:
    """Inputs in their order, and by length."""

    def __init__(self, start: int) -> None:
        self.start = start
        """What the start of a batch costs, in tokens that could be computed in that time."""
        self.tokens = 0
        """Of all inputs that wait."""
        self._now = 0
        self._number = count()
        self._order: list[tuple[int, int, Input]] = []
        self._by_length: dict[int, deque[Input]] = {}

    def add(self, inputs: Sequence[Input]) -> None:
        """The inputs of one request."""
        mark = self._now
        for one in inputs:
            size = len(one.tokens)
            one.mark = mark
            mark += size
            self.tokens += size
            heapq.heappush(self._order, (one.mark, next(self._number), one))
            self._by_length.setdefault(size, deque()).append(one)

    def take(self, most: int) -> list[Input]:
        """The next batch: at most ``most`` tokens with its padding, but one input at least. Empty: nothing waits."""
        first = self._next()
        if first is None:
            return []
        self._now = first.mark
        batch = [first]
        length = longest = len(first.tokens)
        for size in sorted(self._by_length, key=lambda size: abs(size - length)):
            here = self._by_length[size]
            while self._waits(here):
                row = max(size, longest)
                padding = (row - longest) * len(batch) + row - size
                if padding > self.start or row * (len(batch) + 1) > most:
                    break
                longest = row
                batch.append(self._out(here.popleft()))
            if not here:
                del self._by_length[size]
        return batch

    def drop(self, inputs: Sequence[Input]) -> None:
        """The client of these has gone."""
        for one in inputs:
            if not one.taken:
                self._out(one)

    def _next(self) -> Input | None:
        while self._order:
            one = heapq.heappop(self._order)[2]
            if not one.taken:
                return self._out(one)
        return None

    def _waits(self, here: deque[Input]) -> bool:
        while here and here[0].taken:
            here.popleft()
        return bool(here)

    def _out(self, one: Input) -> Input:
        one.taken = True
        self.tokens -= len(one.tokens)
        return one
