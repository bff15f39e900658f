"""A box of a pool in simulated time: its requests, its engines, its disk; and who decides what is loaded."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from _pool_trace import Model, Request

from fleetctl.pool.residency import RULES, Demand, Engine, Evict, Load, Rules, State, candidates, decide, load_seconds

GIB = 1 << 30
READ_RATE = 1.0  # GiB of weights per second: an NVMe disk through the page cache and onto the device
UNLOAD = 2.0  # seconds from the last request to the end of the process
CONCURRENCY = 8
TICK = 1.0  # seconds after which a policy is asked again while something waits

Policy = Callable[[float, State], list[Load | Evict]]


@dataclass
class Live:
    """An engine as it is in this moment."""

    model: Model
    memory: int
    phase: str = "absent"
    loaded_at: float | None = None
    last_used: float | None = None
    load_seconds: float | None = None
    waiting: deque[Request] = field(default_factory=deque)
    running: int = 0
    demand: Demand = field(default_factory=Demand)
    requests: int = 0


@dataclass
class Outcome:
    """What came of a run: per request whether its model was loaded when it came, and how long it waited to begin."""

    hits: int = 0
    waits: list[float] = field(default_factory=list)
    loads: int = 0
    of_model: dict[str, list[float]] = field(default_factory=dict)
    most_held: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of requests whose model was there."""
        return self.hits / len(self.waits)

    def wait(self, share: float) -> float:
        """Seconds that this share of the requests waited at most."""
        return sorted(self.waits)[min(len(self.waits) - 1, int(share * len(self.waits)))]

    @property
    def mean(self) -> float:
        """Mean wait in seconds."""
        return sum(self.waits) / len(self.waits)


class Box:
    """One box; ``run`` plays requests through it."""

    def __init__(self, models: Sequence[Model], memory: float, policy: Policy, seed: int, half_life: float) -> None:
        self.memory = int(memory * GIB)
        self.policy = policy
        self.rng = random.Random(seed)
        self.live = {m.name: Live(m, int(m.memory * GIB), demand=Demand(half_life=half_life)) for m in models}
        self.events: list[tuple[float, int, str, str]] = []
        self.order = itertools.count()
        self.outcome = Outcome(of_model={m.name: [] for m in models})
        self.asked = 0.0

    def run(self, requests: Sequence[Request]) -> Outcome:
        """All requests, until the last has been served."""
        coming = iter(requests)
        upcoming = next(coming, None)
        while upcoming or self.events:
            if upcoming and (not self.events or upcoming.at <= self.events[0][0]):
                now = upcoming.at
                self._arrives(now, upcoming)
                upcoming = next(coming, None)
            else:
                now, _, what, model = heapq.heappop(self.events)
                getattr(self, f"_{what}")(now, self.live[model])
            self._decide(now)
        return self.outcome

    def _at(self, when: float, what: str, live: Live) -> None:
        heapq.heappush(self.events, (when, next(self.order), what, live.model.name))

    def _arrives(self, now: float, request: Request) -> None:
        live = self.live[request.model]
        live.demand = live.demand.after(now)
        live.last_used = now
        live.requests += 1
        self.outcome.hits += live.phase == "loaded"
        live.waiting.append(request)
        self._serve(now, live)

    def _serve(self, now: float, live: Live) -> None:
        while live.phase == "loaded" and live.waiting and live.running < CONCURRENCY:
            request = live.waiting.popleft()
            wait = now - request.at
            self.outcome.waits.append(wait)
            self.outcome.of_model[request.model].append(wait)
            live.running += 1
            self._at(now + request.work, "served", live)

    def _served(self, now: float, live: Live) -> None:
        live.running -= 1
        live.last_used = now
        self._serve(now, live)
        if live.phase == "unloading" and not live.running:
            self._at(now + UNLOAD, "gone", live)

    def _loaded(self, now: float, live: Live) -> None:
        live.phase, live.loaded_at = "loaded", now
        self._serve(now, live)

    def _gone(self, now: float, live: Live) -> None:
        live.phase, live.loaded_at = "absent", None

    def _asks(self, now: float, live: Live) -> None:
        """Time has passed: the policy is asked again."""

    def _decide(self, now: float) -> None:
        if not any(one.waiting and one.phase == "absent" for one in self.live.values()):
            return
        for action in self.policy(now, self.state(now)):
            live = self.live[action.model]
            if isinstance(action, Evict):
                assert live.phase == "loaded"
                live.phase = "unloading"
                if not live.running:
                    self._at(now + UNLOAD, "gone", live)
                continue
            assert live.phase == "absent"
            live.phase = "loading"
            self.outcome.loads += 1
            beside = sum(one.phase == "loading" for one in self.live.values())  # itself included
            took = (live.model.start + live.model.weights / READ_RATE * beside) * self.rng.uniform(0.9, 1.2)
            live.load_seconds = took if live.load_seconds is None else (live.load_seconds + took) / 2
            self._at(now + took, "loaded", live)
            held = sum(one.memory for one in self.live.values() if one.phase != "absent")
            self.outcome.most_held = max(self.outcome.most_held, held)
            assert held <= self.memory
        if self.asked <= now:
            self.asked = now + TICK
            self._at(self.asked, "asks", next(iter(self.live.values())))

    def state(self, now: float) -> State:
        """What the policy is told."""
        return State(self.memory, [_engine(now, one) for one in self.live.values()])


def _engine(now: float, live: Live) -> Engine:
    return Engine(
        model=live.model.name,
        memory=live.memory,
        weights=int(live.model.weights * GIB),
        load_seconds=live.load_seconds,
        phase=live.phase,  # type: ignore[arg-type]
        loaded_at=live.loaded_at,
        last_used=live.last_used,
        requests_waiting=len(live.waiting),
        oldest_wait=now - live.waiting[0].at if live.waiting else 0.0,
        running=live.running,
        demand=live.demand.now(now),
    )


def ours(rules: Rules = RULES) -> Policy:
    """The policy that fleetctl has."""
    return lambda now, state: decide(now, state, rules)


class Classic:
    """A cache's policy: load what waits in the order of its requests, at once; what goes is idle, by rank.

    It has the same memory, as many loads beside each other, and starts no load into memory that is still in use.
    """

    def __init__(self, rank: Callable[[Engine], float]) -> None:
        self.rank = rank

    def __call__(self, now: float, state: State) -> list[Load | Evict]:
        free = state.memory - sum(one.memory for one in state.engines if one.phase != "absent")
        coming = sum(one.memory for one in state.engines if one.phase == "unloading")
        loading = sum(one.phase == "loading" for one in state.engines)
        actions: list[Load | Evict] = []
        idle = [one for one in state.engines if one.phase == "loaded" and not one.running and not one.requests_waiting]
        idle.sort(key=self.rank, reverse=True)
        for wanted in candidates(now, state):
            if wanted.memory <= free:
                if loading < RULES.loads_at_once:
                    actions.append(Load(wanted.model))
                    loading += 1
                    free -= wanted.memory
                continue
            while wanted.memory > free + coming and idle:
                victim = idle.pop()
                actions.append(Evict(victim.model))
                coming += victim.memory
            kept = min(wanted.memory, coming)
            coming -= kept
            free = max(0, free - (wanted.memory - kept))
        return actions


def lru() -> Policy:
    """Least recently used goes."""
    return Classic(lambda one: one.last_used or 0.0)


def lfu() -> Policy:
    """Least frequently used goes; the requests of all time count alike if demand does not decay."""
    return Classic(lambda one: one.demand)


class Gdsf(Classic):
    """GreedyDual-Size-Frequency as its paper has it: the clock moves with what goes.

    Between two calls nothing goes, so the clock stands still: a model used meanwhile gets its value at the next call.
    """

    def __init__(self) -> None:
        super().__init__(lambda one: self.value[one.model])
        self.clock = 0.0
        self.value: dict[str, float] = {}
        self.used: dict[str, float | None] = {}

    def __call__(self, now: float, state: State) -> list[Load | Evict]:
        for one in state.engines:
            if one.model not in self.value or self.used[one.model] != one.last_used:
                self.value[one.model] = self.clock + one.demand * load_seconds(one) / one.memory
                self.used[one.model] = one.last_used
        actions = super().__call__(now, state)
        self.clock = max([self.clock, *(self.value[one.model] for one in actions if isinstance(one, Evict))])
        return actions
