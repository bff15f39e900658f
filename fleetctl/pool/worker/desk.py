"""The machine-local queue of one model: what the box has taken, until an engine of the box begins with it.

Any engine that serves the model takes from it, the least busy one first, so what was pulled for one goes to another
without leaving the box. Requests that somebody waits for go first; lines of batch jobs take what room they leave.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from fleetctl.pool import wire
from fleetctl.pool.worker.compose import Size, alike, in_order
from fleetctl.pool.worker.engine import Engine
from fleetctl.pool.worker.pace import MEAN_COST, OVERLAP, Pace
from fleetctl.pool.worker.request import Request

BREATH = 0.001
"""Seconds in which what the queue sends at once is here, generously."""


MOST_PASSED = 256
"""Requests that may be passed over in the search for those that fit."""
LOOK = 3
"""Calls whose number of requests may wait here beside the next one, for those of like cost to be chosen from. With as
many, eight of 32 are chosen: in a simulation 1.3 times as much is done per second as with the oldest eight, and 1.4
times with any number (costs even on a logarithmic scale of 1 to 100, a quarter of each member's time added)."""
OF_WAITING = 8
"""Part of what waits in the queue that a worker takes to choose from: the rest is for the other workers' engines, so
that nobody waits here whom an engine elsewhere could begin with."""

PATIENCE = 0.1
"""Seconds that a call waits for what there is to choose from. A queue that does not answer, as while a cluster of NATS
chooses a leader, holds up nothing that is here."""

Choose = Callable[[Sequence[Size], int, int], list[int]]
"""Which of the requests that could be one call are it: see `compose.py`."""


class Line:
    """Requests that wait for an engine, in their order, and the tokens that they are estimated to take together."""

    __slots__ = ("requests", "tokens")

    def __init__(self) -> None:
        self.requests: deque[Request] = deque()
        self.tokens = 0

    def __len__(self) -> int:
        return len(self.requests)

    def add(self, request: Request) -> None:
        """At the end."""
        self.requests.append(request)
        self.tokens += request.cost

    def add_first(self, request: Request) -> None:
        """Before all others."""
        self.requests.appendleft(request)
        self.tokens += request.cost

    def take(self) -> Request:
        """The first."""
        request = self.requests.popleft()
        self.tokens -= request.cost
        return request

    def remove(self, request: Request) -> bool:
        """Wherever it is; False: it is not here."""
        try:
            self.requests.remove(request)
        except ValueError:
            return False
        self.tokens -= request.cost
        return True

    def take_group(self, choose: Choose, batch_tokens: int, most_inputs: int) -> list[Request]:
        """The first request, and those of the others that can be merged with it which are chosen."""
        first = self.requests[0]
        assert first.merge is not None
        places, sizes = list[int](), list[Size]()
        for place, request in enumerate(islice(self.requests, MOST_PASSED)):
            merge = request.merge
            if place == 0 or (merge is not None and not request.alone and merge.key == first.merge.key):
                places.append(place)
                sizes.append(Size(request.cost, len(merge.inputs) if merge is not None else 1))
        taken = {places[index] for index in choose(sizes, batch_tokens, most_inputs)}
        passed = [self.take() for _ in range(max(taken) + 1)]
        for place in range(len(passed) - 1, -1, -1):
            if place not in taken:
                self.add_first(passed[place])
        return [request for place, request in enumerate(passed) if place in taken]


class Desk:
    """Requests of one model and the engines that serve it. ``start`` is given an engine and a group for one call."""

    def __init__(self, model: str, start: Callable[[Engine, list[Request]], None]) -> None:
        self.model = model
        self.pace = Pace()
        self.engines: list[Engine] = []
        self.lines: dict[wire.Lane, Line] = {"work": Line(), "batch": Line()}
        self.more_comes: Callable[[wire.Lane], bool] = lambda lane: False
        """Whether requests of a lane have been asked for that wait in the queue."""
        self.awaited: dict[wire.Lane, bool] = {}
        """Lanes of which nothing begins before the queue has been asked for what there is to choose from; whether it
        has been asked."""
        self._start = start
        self._soon = False

    @property
    def merges(self) -> bool:
        """Whether requests can be merged."""
        return any(engine.merges for engine in self.engines)

    @property
    def speaks_messagepack(self) -> bool:
        """Whether all engines do."""
        return all(engine.speaks_messagepack for engine in self.engines)

    @property
    def serves(self) -> bool:
        """Whether an engine of the box takes requests."""
        return any(engine.serves for engine in self.engines)

    @property
    def chooses(self) -> bool:
        """Whether it is of use to have more here than the next calls need: calls are long, of requests that differ,
        and the engines do not cut batches themselves."""
        long = self.merges and self.pace.call_seconds >= OVERLAP
        return long and self.pace.varied and not self.speaks_messagepack

    def put(self, request: Request) -> None:
        """A request has come."""
        self.pace.came(request.cost)
        self.lines[request.lane].add(request)
        if request.merge is None:
            self.feed()
        elif not self._soon:  # what comes in the same breath goes together
            self._soon = True
            loop = asyncio.get_running_loop()
            if self.more_comes(request.lane):
                loop.call_later(BREATH, self._feed_soon)
            else:
                loop.call_soon(self._feed_soon)

    def hold(self, lanes: Iterable[wire.Lane]) -> None:
        """An engine has room, and of these lanes there is more in the queue: what goes into its next call is chosen
        once the queue was asked for it, where there is a choice; :data:`PATIENCE` seconds later in any case."""
        held = dict.fromkeys(lanes, False) if self.chooses else {}
        if held:
            self.awaited |= held
            asyncio.get_running_loop().call_later(PATIENCE, self.release, *held)

    def release(self, *lanes: wire.Lane) -> None:
        """What there is to choose from of these lanes is here."""
        if lanes:
            for lane in lanes:
                self.awaited.pop(lane, None)
            self.feed()

    def _feed_soon(self) -> None:
        self._soon = False
        self.feed()

    def put_first(self, requests: Iterable[Request]) -> None:
        """Requests that had been taken come first again."""
        for request in reversed(list(requests)):
            self.lines[request.lane].add_first(request)
        self.feed()

    def remove(self, request: Request) -> bool:
        """Take a request out, whose client has gone; False: it does not wait."""
        return self.lines[request.lane].remove(request)

    def clear(self) -> list[Request]:
        """Take all of them out."""
        return [line.take() for line in self.lines.values() for _ in range(len(line))]

    def feed(self) -> None:
        """Begin whatever can begin."""
        if not (self.lines["work"] or self.lines["batch"]):
            return
        while True:
            for engine in sorted((one for one in self.engines if one.serves), key=lambda one: one.calls):
                group = self._next(engine)
                if group:
                    self._start(engine, group)
                    break
            else:
                return

    def _next(self, engine: Engine) -> list[Request]:
        """What an engine begins with now, as one call; nothing: it has no room, or nothing waits."""
        if engine.alone or engine.calls >= max(1, engine.config.concurrency):
            return []
        for lane, line in self.lines.items():
            if lane in self.awaited:
                if lane == "work":
                    return []
                continue
            if not line or (lane == "batch" and engine.calls >= engine.batch_calls):
                continue
            first = line.requests[0]
            if first.alone:
                return [line.take()] if engine.calls == 0 else []
            if first.merge is None:
                return [line.take()]
            tokens, inputs = engine.config.batch_tokens, engine.most_inputs
            full = engine.calls < engine.most_calls and (line.tokens >= tokens or len(line) >= inputs)
            full = full and not self.chooses  # what is chosen late is chosen from more
            if full or engine.calls < engine.at_once or (lane == "work" and engine.free()):
                return line.take_group(in_order if engine.speaks_messagepack else alike, tokens, inputs)
        return []

    def wanted(self, lane: wire.Lane) -> int:
        """Requests of a lane that could begin now and are not here."""
        if lane == "work":
            return sum(engine.free() for engine in self.engines) - len(self.lines["work"])
        room = sum(min(engine.free(), max(0, engine.batch_calls - engine.calls)) for engine in self.engines)
        return room - len(self.lines["work"]) - len(self.lines["batch"])

    def ahead(self, lane: wire.Lane) -> int:
        """Requests of a lane that should wait here so that no engine waits for the next. None where calls are long:
        what waits here is not begun by an engine of another box that has room before."""
        serving = [engine for engine in self.engines if engine.serves]
        if self.pace.call_seconds >= OVERLAP:
            return 0
        if lane == "batch" and all(engine.calls >= engine.batch_calls and not engine.merges for engine in serving):
            return 0
        if not self.merges:
            return sum(self.pace.ahead(engine.config) for engine in serving)
        cost = self.pace.mean_cost or MEAN_COST
        return sum(min(engine.most_inputs, max(1, int(engine.config.batch_tokens / cost))) for engine in serving)

    def choice(self, waiting: int) -> int:
        """Requests to have here beside those of the next calls, of so many that wait in the queue."""
        if not self.chooses:
            return 0
        most = max((engine.most_inputs for engine in self.engines if engine.serves), default=0)
        return min(LOOK * most, waiting // OF_WAITING)

    def missing(self, lane: wire.Lane, more: int = 0) -> int:
        """Requests that the next calls have room for and that are not here, and so many more: by number, and where they
        can be merged by what they are estimated to take. Where calls are long, only those calls count that could begin
        now."""
        line = self.lines[lane]
        if not self.merges:
            return max(0, self.ahead(lane) - len(line))
        late = self.pace.call_seconds >= OVERLAP
        serving = [engine for engine in self.engines if engine.serves and (engine.free() or not late)]
        inputs = sum(engine.most_inputs for engine in serving) - len(line)
        tokens = sum(engine.config.batch_tokens for engine in serving) - line.tokens
        return max(0, min(inputs, int(tokens / (self.pace.mean_cost or MEAN_COST))) + more)
