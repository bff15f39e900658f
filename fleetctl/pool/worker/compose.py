"""Which of the requests that wait become one call: those of like cost around the oldest. Pure.

An engine that computes a batch works on it until its longest member is done: what is shorter is padded, or leaves
places empty. So a batch of like members brings more in the same time (sentence-transformers sorts texts by length).
Whatever an engine's time is made of, a share of the longest member and a share of the sum, or the longest times the
number, more is done per second the more the members' costs add up to beside the longest one's: of the groups that could
be one call, the one with the greatest ``sum / longest`` is taken.

The oldest request is in every group, so none waits for more calls than there were requests before it. That needs no
knowledge of when an answer would be late.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

MOST_LOOKED = 64
"""Requests, the oldest first, among which a group is chosen."""
WORTH = 1.1
"""Times the value of the oldest requests that another group has to have: estimates are not better than that, and where
all cost the same the order stays."""


class Size(NamedTuple):
    """What a request is estimated to take."""

    tokens: int
    """Of all of its inputs."""
    inputs: int = 1

    @property
    def longest(self) -> float:
        """Tokens of one of its inputs."""
        return self.tokens / max(1, self.inputs)


def in_order(waiting: Sequence[Size], batch_tokens: int, most_inputs: int) -> list[int]:
    """The first request, and those after it that fit a call with it: their indexes, in their order."""
    return _filled(waiting, [0], range(1, len(waiting)), batch_tokens, most_inputs)


def alike(waiting: Sequence[Size], batch_tokens: int, most_inputs: int) -> list[int]:
    """The first request, and those that do best in one call with it: their indexes, in their order.

    ``waiting`` is in the order of arrival, not empty; the first is taken whatever its size.
    """
    oldest = in_order(waiting, batch_tokens, most_inputs)
    looked = waiting[:MOST_LOOKED]
    chosen, most = oldest, WORTH * _value(waiting, oldest)
    # The longest first; of two alike, the older one. Each in turn is the longest of a group.
    order = sorted(range(len(looked)), key=lambda index: -looked[index].longest)
    for place, longest in enumerate(order):
        begin = [0] if longest == 0 else [0, longest]
        if _fits(looked, begin, batch_tokens, most_inputs):
            rest = (index for index in order[place + 1 :] if index != 0)
            group = _filled(looked, begin, rest, batch_tokens, most_inputs)
            value = _value(looked, group)
            if value > most:
                chosen, most = group, value
        if longest == 0:  # it would be the longest of all groups that follow
            break
    return sorted(chosen)


def _filled(
    waiting: Sequence[Size], group: list[int], others: Iterable[int], batch_tokens: int, most_inputs: int
) -> list[int]:
    """The group with those of the others that still fit, in their order."""
    tokens = sum(waiting[index].tokens for index in group)
    inputs = sum(waiting[index].inputs for index in group)
    for index in others:
        if tokens >= batch_tokens or inputs >= most_inputs:
            break
        size = waiting[index]
        if tokens + size.tokens <= batch_tokens and inputs + size.inputs <= most_inputs:
            group.append(index)
            tokens += size.tokens
            inputs += size.inputs
    return group


def _fits(waiting: Sequence[Size], group: Sequence[int], batch_tokens: int, most_inputs: int) -> bool:
    """Whether a group can be one call. The first request alone always can."""
    return len(group) == 1 or (
        sum(waiting[index].tokens for index in group) <= batch_tokens
        and sum(waiting[index].inputs for index in group) <= most_inputs
    )


def _value(waiting: Sequence[Size], group: Sequence[int]) -> float:
    """How many of its longest member a group amounts to."""
    return sum(waiting[index].tokens for index in group) / max(waiting[index].longest for index in group)
