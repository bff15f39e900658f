"""Which models of a pool a box has in its memory: what to load now and what to evict. Pure.

A box has more models than memory. Pinned ones are always loaded. Any other is loaded when a request waits for it, and
others have to go for it where memory is short. What goes is what costs least to miss, in seconds that requests would
wait, per byte that it frees. That is GreedyDual-Size-Frequency (L. Cherkasova, "Improving WWW Proxies Performance with
Greedy-Dual-Size-Frequency Caching Policy", HP Laboratories, HPL-98-69R1, 1998: value = clock + frequency x cost /
size), but for its clock: GDSF ages what is in the cache with every eviction, here demand decays with time
(:class:`Demand`), because evictions of models are rare and their requests come in bursts. How long it is since the last
request counts too, as in LRFU (D. Lee et al., IEEE Transactions on Computers 50(12), 2001).

When something goes is the ski-rental rule (A. Karlin et al., "Competitive snoopy caching", Algorithmica 3, 1988): a
model is loaded in place of others once its requests have waited, together, for as long as those of the others are
expected to wait because of it. So a model that nobody uses goes at once, and one that is in use goes late. Nothing is
loaded without a request or a wish.

What is promised, whatever the demand (tests/unit/pool/test_pool_residency.py):

- Models that are loaded, loading or unloading never take more than the memory. The guard's reserve is not in it.
- A pinned model is never evicted, but where the box itself has run short and nothing else is left
  (:data:`Reach`); its memory is kept free for it while it cannot be loaded.
- A model that runs requests is not stopped: evicting means to give it no more of them, and to stop it after the last.
- Requests that have waited for ``Rules.starving`` are served in the order in which they came, whatever it costs: memory
  that becomes free is kept for the oldest, and all that has had its time goes for it.
- What has been loaded stays for a while, so that it serves what it was loaded for, and no two models chase each other.
- A load that failed is tried again after 5 s, 10 s, 20 s, up to 5 min.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Phase = Literal["absent", "loading", "loaded", "unloading", "failed"]
"""``unloading`` begins when it gets no more requests and ends when its process has ended; ``failed`` has no process."""
Wish = Literal["load", "evict"]
"""``load``: now, without a request; met, and forgotten, once it is loaded. ``evict``: stays out until another wish."""
Reach = Literal["", "idle", "unpinned", "pinned"]
"""What goes where the memory has become less than what is loaded: nothing, what is idle and not pinned, what runs
requests too, and pinned ones too."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine of the box. Times are seconds of the clock whose ``now`` is given to :func:`decide`."""

    model: str
    memory: int
    """Bytes that it takes from the beginning of its load to the end of its process."""
    weights: int = 0
    """Bytes that loading reads."""
    load_seconds: float | None = None
    """How long a load took, as seen; None: not seen yet."""
    pinned: bool = False
    phase: Phase = "absent"
    loaded_at: float | None = None
    """When it became ready; None: it is not loaded."""
    last_used: float | None = None
    """When a request for it came or ended last; None: never."""
    requests_waiting: int = 0
    oldest_wait: float = 0.0
    """Seconds for which the oldest of those has waited."""
    running: int = 0
    demand: float = 0.0
    """Requests per second of late, as :class:`Demand` has them."""
    failures: int = 0
    """Loads that failed, one after the other; a load that succeeds sets it to 0."""
    failed_at: float | None = None
    wish: Wish | None = None
    """What an operator wishes."""


@dataclass(frozen=True, slots=True)
class State:
    """A box: bytes that its engines may take together, and the engines."""

    memory: int
    engines: Sequence[Engine]
    hold: bool = False
    """The box is short of memory: nothing is loaded, and nothing goes for what waits."""
    reach: Reach = ""


@dataclass(frozen=True, slots=True)
class Load:
    """Start the engine now. Its phase is ``loading`` from here on."""

    model: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Evict:
    """Give the engine no more requests, wait for those that run, stop it. Its phase is ``unloading`` from here on."""

    model: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """The policy's constants, in seconds where nothing else is said. Tuned by ``bench/pool_residency.py --tune``."""

    loads_at_once: int = 3
    """Loads beside each other: they share the disk."""
    stay: float = 1.0
    """For how long a loaded model stays at least."""
    stay_loads: float = 0.1
    """The same, as a part of the time of its load: what took long to load stays longer."""
    horizon: float = 3.0
    """How far ahead it is asked whether an evicted model would be missed."""
    recent: float = 3.0
    """A model used so long ago counts as if it had one request in four times as long; the chance falls with time."""
    eager: float = 10.0
    """A request that waits counts as if it had waited for so much longer: others go for it at once, or late."""
    busy: float = 10.0
    """How long requests wait before models that have requests of their own may go for them."""
    starving: float = 30.0
    """How long requests wait before they come first, whatever it costs."""
    retry_first: float = 5.0
    retry_most: float = 300.0
    start_seconds: float = 5.0
    """Where no load was seen: a process and its libraries."""
    read_rate: float = 1e9
    """Where no load was seen: bytes of weights per second."""


RULES = Rules()


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests per second of one model, each of which counts half as much after ``half_life`` seconds."""

    rate: float = 0.0
    at: float = 0.0
    half_life: float = 3600.0

    def now(self, now: float) -> float:
        """Requests per second."""
        return self.rate * math.exp2(-max(0.0, now - self.at) / self.half_life)

    def after(self, now: float, requests: int = 1) -> Demand:
        """With requests that came now."""
        return Demand(self.now(now) + requests * math.log(2) / self.half_life, now, self.half_life)


def decide(now: float, state: State, rules: Rules = RULES) -> list[Load | Evict]:
    """What to do now. Ask whenever something has changed, and every second: waiting alone changes the answer.

    The phases in ``state`` have to have what earlier answers began.
    """
    engines = state.engines
    held = sum(one.memory for one in engines if _takes_memory(one))
    coming = sum(one.memory for one in engines if one.phase == "unloading")
    budget = _Budget(state.memory - held, coming)
    loading = sum(one.phase == "loading" for one in engines)
    actions: list[Load | Evict] = []
    leaving: set[str] = set()
    for one in engines:
        if one.phase == "loaded" and one.wish == "evict" and not one.pinned:
            actions.append(Evict(one.model, "an operator wishes it"))
            leaving.add(one.model)
            budget.coming += one.memory
    for one in _shed(now, state, held - budget.coming - state.memory, leaving, rules):
        actions.append(Evict(one.model, "the box is short of memory"))
        leaving.add(one.model)
        budget.coming += one.memory
    for wanted in () if state.hold else candidates(now, state, rules):
        may_load = loading < rules.loads_at_once and not _backs_off(now, wanted, rules)
        if wanted.memory <= budget.free:
            budget.free -= wanted.memory
            if may_load:
                loading += 1
                actions.append(Load(wanted.model, _why(wanted)))
            elif not _comes_first(wanted, rules):
                budget.free += wanted.memory
            continue
        if wanted.memory > budget.free + budget.coming:
            rest = [one for one in engines if one.phase == "loaded" and not one.pinned and one.model not in leaving]
            victims = _victims(now, wanted, rest, wanted.memory - budget.free - budget.coming, rules)
            for victim in victims:
                actions.append(Evict(victim.model, f"{wanted.model} needs its memory: {_why(wanted)}"))
                leaving.add(victim.model)
                budget.coming += victim.memory
        if wanted.memory <= budget.free + budget.coming or _comes_first(wanted, rules):
            budget.keep(wanted.memory)
    return actions


def candidates(now: float, state: State, rules: Rules = RULES) -> list[Engine]:
    """Engines that should be loaded and are not, the first in line first: pinned, wished, then as their requests came.

    An engine that backs off is among them only if it is pinned, so that its memory stays free.
    """
    never = set(never_fits(state))
    wanted = [
        one
        for one in state.engines
        if one.phase in ("absent", "failed")
        and one.model not in never
        and (one.pinned or (one.wish != "evict" and (one.wish == "load" or one.requests_waiting > 0)))
        and (one.pinned or not _backs_off(now, one, rules))
    ]
    return sorted(wanted, key=lambda one: (not one.pinned, one.wish != "load", -one.oldest_wait, one.model))


def never_fits(state: State) -> list[str]:
    """Models that cannot be loaded however long they wait: larger than what the pinned ones leave.

    Where the pinned ones are too much together, those that are loaded count first, then the others as they are listed.
    """
    room = state.memory
    never = []
    for one in sorted((one for one in state.engines if one.pinned), key=lambda one: not _takes_memory(one)):
        if one.memory <= room or _takes_memory(one):
            room -= one.memory
        else:
            never.append(one.model)
    rest = [one for one in state.engines if not one.pinned and not _takes_memory(one)]
    return never + [one.model for one in rest if one.memory > room]


def load_seconds(engine: Engine, rules: Rules = RULES) -> float:
    """How long a load takes: as seen, else from the size of the weights."""
    if engine.load_seconds is not None:
        return engine.load_seconds
    return rules.start_seconds + engine.weights / rules.read_rate


def missed(now: float, engine: Engine, rules: Rules = RULES) -> float:
    """Seconds that requests are expected to wait, together, if this engine is evicted now.

    Requests come at a rate r; the chance that one comes within the horizon is 1 - exp(-r x horizon). The first waits
    for a load of L seconds, and those that come meanwhile, r x L, for half of it each. Requests that it has already are
    certain to wait.
    """
    rate, load = engine.demand, load_seconds(engine, rules)
    if engine.last_used is not None:
        rate += 0.5 / (max(0.0, now - engine.last_used) + rules.recent)
    chance = 1 - math.exp(-rate * rules.horizon)
    return (chance + engine.requests_waiting + engine.running) * load * (1 + rate * load / 2)


def _shed(now: float, state: State, over: int, leaving: Iterable[str], rules: Rules) -> list[Engine]:
    """Engines that free ``over`` bytes, as far as it may be reached: idle ones first, those that are pinned last."""
    reach = {"": -1, "idle": 0, "unpinned": 1, "pinned": 2}[state.reach]
    loaded = [one for one in state.engines if one.phase == "loaded" and one.model not in leaving]
    ranked = [(2 if one.pinned else int(one.running > 0), one) for one in loaded]
    chosen: list[Engine] = []
    for rank, one in sorted(ranked, key=lambda two: (two[0], missed(now, two[1], rules) / max(two[1].memory, 1))):
        if rank > reach or sum(two.memory for two in chosen) >= over:
            break
        chosen.append(one)
    return chosen


class _Budget:
    """Bytes that are free, and bytes that become free when what is unloading has ended."""

    def __init__(self, free: int, coming: int) -> None:
        self.free = free
        self.coming = coming

    def keep(self, memory: int) -> None:
        """Keep memory for one that waits for it: of what comes, and where that is too little, of what is free."""
        from_coming = min(memory, self.coming)
        self.coming -= from_coming
        self.free = max(0, self.free - (memory - from_coming))


def _victims(now: float, wanted: Engine, loaded: Iterable[Engine], need: int, rules: Rules) -> list[Engine]:
    """Engines that go for ``wanted``: together at least ``need`` bytes; none, if that is not worth it yet."""
    allowed = [one for one in loaded if _may_go(now, one, wanted, rules)]
    chosen = _cheapest(now, allowed, need, rules)
    if _comes_first(wanted, rules):
        return chosen
    waited = wanted.requests_waiting * (wanted.oldest_wait + rules.eager)
    return chosen if sum(missed(now, one, rules) for one in chosen) <= waited else []


def _cheapest(now: float, allowed: Sequence[Engine], need: int, rules: Rules) -> list[Engine]:
    """Engines of those allowed that free ``need`` bytes together and cost little to miss; none, if all are too few."""
    if sum(one.memory for one in allowed) < need:
        return []
    chosen: list[Engine] = []
    for one in sorted(allowed, key=lambda one: (missed(now, one, rules) / one.memory, one.model)):
        if sum(two.memory for two in chosen) >= need:
            break
        chosen.append(one)
    for one in sorted(chosen, key=lambda one: missed(now, one, rules), reverse=True):
        if sum(two.memory for two in chosen) - one.memory >= need:
            chosen.remove(one)
    return chosen


def _may_go(now: float, engine: Engine, wanted: Engine, rules: Rules) -> bool:
    if wanted.pinned or wanted.wish == "load":
        return True
    since = now - (engine.loaded_at if engine.loaded_at is not None else now)
    if since < max(rules.stay, rules.stay_loads * load_seconds(engine, rules)):
        return False
    return wanted.oldest_wait >= rules.busy or not (engine.running or engine.requests_waiting)


def _comes_first(engine: Engine, rules: Rules) -> bool:
    return engine.pinned or engine.wish == "load" or engine.oldest_wait >= rules.starving


def _takes_memory(engine: Engine) -> bool:
    return engine.phase in ("loading", "loaded", "unloading")


def _backs_off(now: float, engine: Engine, rules: Rules) -> bool:
    if engine.phase != "failed" or engine.failed_at is None:
        return False
    wait = min(rules.retry_most, rules.retry_first * 2.0 ** min(max(engine.failures, 1) - 1, 30))
    return now < engine.failed_at + wait


def _why(engine: Engine) -> str:
    if engine.pinned:
        return "it is pinned"
    if engine.wish == "load":
        return "an operator wishes it"
    return f"{engine.requests_waiting} requests wait, the oldest for {engine.oldest_wait:.1f} s"
