"""How fast engines work and what requests cost, as measured: what decides how much a worker takes. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import msgpack

from fleetctl.pool import wire

BYTES_PER_TOKEN = 4.0
"""Of English text in JSON, where a request has no estimate; corrected by what engines count."""
HALF_LIFE = 20.0
"""Busy seconds after which what was measured counts half as much."""
ROUND_TRIP = 0.02
"""Seconds that a pull may take, generously: so much work that cannot be merged waits beside an engine."""
CALLS = 2
"""Calls at once, where requests can be merged: one at work, and one that follows it."""
CALLS_TO_BATCHERS = 4
"""The same at a server that makes its own batches of all that is there: it ends two calls at the same time, and has
nothing to do until the next come (fleetctl's encoder, 4 clients with 64 texts: 0.75 of direct with two, 1.0 with four).
"""
OVERLAP = 0.05
"""Seconds of a call below which the next one follows without being full: what lies between two calls would count. After
longer ones it is better begun late, with all that has come meanwhile."""

REMEMBERED = 200
"""Requests whose costs say how much they differ."""
VARIED = 0.5
"""Standard deviation of costs, in terms of their mean, from which it is of use to choose which go together: what is
estimated 30 % wrong does not look varied because of that."""
MEAN_COST = 64.0
"""Tokens of a request of a model that has had none yet."""

_TOTAL = b"total_tokens"
_NUMBER = re.compile(rb'"\s*:\s*(\d+)')
_TAIL = 2048


@dataclass(slots=True)
class Pace:
    """What was seen of one model on this box."""

    tokens: float = 0.0
    requests: float = 0.0
    busy: float = 0.0
    """Seconds in which its engines worked; these three fade together."""
    call_seconds: float = 0.0
    """How long a call took, of late."""
    factor: float = 1.0
    """Tokens that engines counted per token that was estimated."""
    cost_mean: float = 0.0
    cost_square: float = 0.0
    """Mean of the costs of requests, and of their squares, of late."""

    def cost(self, envelope: wire.Envelope) -> int:
        """Tokens that a request is taken to cost."""
        raw = envelope.cost or envelope.size / BYTES_PER_TOKEN
        return max(1, round(raw * self.factor))

    def came(self, cost: int) -> None:
        """A request of such a cost has come."""
        part = 1 / REMEMBERED if self.cost_mean else 1.0
        self.cost_mean += part * (cost - self.cost_mean)
        self.cost_square += part * (cost * cost - self.cost_square)

    @property
    def varied(self) -> bool:
        """Whether some requests cost much more than others."""
        return self.cost_square > (1 + VARIED**2) * self.cost_mean**2

    def saw(self, requests: int, tokens: int, busy: float) -> None:
        """So much was finished in so many seconds of work."""
        fade = math.exp2(-busy / HALF_LIFE)
        self.tokens = self.tokens * fade + tokens
        self.requests = self.requests * fade + requests
        self.busy = self.busy * fade + busy

    def called(self, seconds: float) -> None:
        """A call took so long."""
        self.call_seconds = self.call_seconds * 0.9 + seconds * 0.1 if self.call_seconds else seconds

    def counted(self, estimated: int, actual: int) -> None:
        """An engine has counted what had been estimated with today's factor."""
        ratio = actual / max(1, estimated) * self.factor
        self.factor = min(50.0, max(0.02, self.factor * 0.95 + ratio * 0.05))

    @property
    def tokens_per_second(self) -> float:
        """Measured throughput; 0: nothing measured yet."""
        return self.tokens / self.busy if self.busy > 0.05 else 0.0

    @property
    def requests_per_second(self) -> float:
        """The same in requests."""
        return self.requests / self.busy if self.busy > 0.05 else 0.0

    @property
    def mean_cost(self) -> float:
        """Tokens of a request."""
        return max(1.0, self.tokens / self.requests) if self.requests > 0 else 0.0

    def ahead(self, engine: wire.PoolEngine) -> int:
        """Requests that cannot be merged and should wait beside an engine while others wait in the queue: what it ends
        in the time of a pull, one at least."""
        follows = math.ceil(self.requests_per_second * ROUND_TRIP)
        return min(max(1, follows), max(1, engine.concurrency))


def tokens_in(answer: bytes) -> int:
    """Tokens that an engine says it took, from the end or the begin of its answer, JSON or MessagePack; 0: it does not
    say."""
    at = answer.rfind(_TOTAL, max(0, len(answer) - _TAIL))
    at = at if at >= 0 else answer.find(_TOTAL, 0, _TAIL)
    if at < 0:
        return 0
    after = answer[at + len(_TOTAL) : at + len(_TOTAL) + 24]
    found = _NUMBER.match(after)
    if found is not None:
        return int(found[1])
    unpacker = msgpack.Unpacker()
    unpacker.feed(after)
    try:
        number = unpacker.unpack()
    except (ValueError, msgpack.UnpackException):
        return 0
    return number if type(number) is int else 0
