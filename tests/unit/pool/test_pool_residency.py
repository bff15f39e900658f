"""What is loaded and what goes: the promises of ``fleetctl/pool/residency.py``, in worlds that Hypothesis makes up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.pool.residency import (
    RULES,
    Demand,
    Engine,
    Evict,
    Load,
    Reach,
    State,
    candidates,
    decide,
    load_seconds,
    never_fits,
)

GIB = 1 << 30


def models(actions: Sequence[Load | Evict], kind: type[Load] | type[Evict]) -> list[str]:
    return [one.model for one in actions if isinstance(one, kind)]


def loaded(model: str, memory: int, **more: object) -> Engine:
    """An engine that has been there for long, and is idle."""
    return replace(Engine(model, memory * GIB, phase="loaded", loaded_at=0.0, last_used=0.0, load_seconds=10.0), **more)  # type: ignore[arg-type]


def asked(model: str, memory: int, wait: float = 0.0, **more: object) -> Engine:
    """An engine that is not there, and that a request waits for."""
    return replace(Engine(model, memory * GIB, requests_waiting=1, oldest_wait=wait, load_seconds=10.0), **more)  # type: ignore[arg-type]


NOW = 10_000.0


def on(memory: int, *engines: Engine) -> tuple[list[str], list[str]]:
    actions = decide(NOW, State(memory * GIB, engines))
    return models(actions, Load), models(actions, Evict)


# One moment ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory", "engines", "loads", "evicts"),
    [
        pytest.param(8, [asked("a", 4)], ["a"], [], id="what is asked for is loaded where there is room"),
        pytest.param(8, [Engine("a", GIB)], [], [], id="what nobody asks for is not"),
        pytest.param(8, [Engine("a", GIB, pinned=True)], ["a"], [], id="unless it is pinned"),
        pytest.param(8, [Engine("a", GIB, wish="load")], ["a"], [], id="or wished"),
        pytest.param(8, [loaded("a", 6), asked("b", 4)], [], ["a"], id="what nobody uses goes at once"),
        pytest.param(8, [loaded("a", 6, pinned=True), asked("b", 4, 99)], [], [], id="what is pinned never goes"),
        pytest.param(8, [loaded("a", 6, running=1), asked("b", 4, 1)], [], [], id="what runs requests does not"),
        pytest.param(
            8, [loaded("a", 6, running=1), asked("b", 4, 40)], [], ["a"], id="until others have waited too long for it"
        ),
        pytest.param(
            8,
            [loaded("a", 6, loaded_at=NOW - 0.5), asked("b", 4, 40)],
            [],
            [],
            id="what was loaded a moment ago stays, however long others wait",
        ),
        pytest.param(
            8,
            [replace(loaded("a", 6), phase="unloading"), asked("b", 4)],
            [],
            [],
            id="memory is free once the process has ended, and nothing else has to go for it",
        ),
        pytest.param(
            8,
            [replace(loaded("a", 4), phase="unloading"), asked("b", 6, 40), asked("c", 4, 1)],
            [],
            [],
            id="what comes free is kept for the one that was asked for first",
        ),
        pytest.param(
            8, [asked("a", 9, 99), asked("b", 4)], ["b"], [], id="what is larger than the box keeps nobody waiting"
        ),
        pytest.param(
            8,
            [loaded("a", 4, wish="evict"), asked("b", 2, wish="evict")],
            [],
            ["a"],
            id="what an operator wants out goes, and is not loaded for a request",
        ),
        pytest.param(
            8,
            [loaded("a", 6, running=3, loaded_at=NOW - 0.5), Engine("b", 4 * GIB, wish="load")],
            [],
            ["a"],
            id="an operator's wish comes before what is in use",
        ),
        pytest.param(
            8, [loaded("a", 6, wish="evict", pinned=True)], [], [], id="pinned is pinned, whatever else is wished"
        ),
        pytest.param(
            8,
            [asked("a", 2, phase="failed", failures=3, failed_at=NOW - 15)],
            [],
            [],
            id="a load that failed thrice is not tried again within 20 s",
        ),
        pytest.param(
            8, [asked("a", 2, phase="failed", failures=3, failed_at=NOW - 21)], ["a"], [], id="it is after that"
        ),
        pytest.param(
            8,
            [
                Engine("a", 6 * GIB, pinned=True, phase="failed", failures=9, failed_at=NOW),
                asked("b", 4),
                asked("c", 2),
            ],
            ["c"],
            [],
            id="the memory of a pinned model stays free while it cannot be loaded",
        ),
    ],
)
def test_one_moment(memory: int, engines: list[Engine], loads: list[str], evicts: list[str]) -> None:
    assert on(memory, *engines) == (loads, evicts)


def test_of_two_models_the_one_that_costs_less_to_miss_for_its_size_goes() -> None:
    slow = loaded("slow", 4, demand=0.01, load_seconds=60.0)
    quick = loaded("quick", 4, demand=0.01, load_seconds=4.0)
    assert on(8, slow, quick, asked("c", 4, 9)) == ([], ["quick"])
    busy, rare = loaded("busy", 4, demand=0.02), loaded("rare", 4, demand=0.001)
    assert on(8, busy, rare, asked("c", 4, 9)) == ([], ["rare"])
    large, small = loaded("large", 6, demand=0.01), loaded("small", 2, demand=0.01)
    assert on(8, large, small, asked("c", 2, 9)) == ([], ["large"])


def test_no_more_go_than_have_to() -> None:
    small = [loaded(f"s{number}", 1) for number in range(4)]
    big = loaded("big", 4, demand=0.01, load_seconds=60.0)
    assert on(8, *small, big, asked("c", 2, 9)) == ([], ["s0", "s1"])
    # The cheapest for its size comes first; once a larger one has to go too, it stays.
    assert on(8, loaded("s", 1, demand=0.0), loaded("big", 7, demand=0.0001), asked("c", 6, 9)) == ([], ["big"])


def test_too_many_pinned_ones_are_told_and_the_rest_still_gets_what_is_left() -> None:
    state = State(8 * GIB, [Engine("a", 5 * GIB, pinned=True), Engine("b", 5 * GIB, pinned=True), asked("c", 3)])
    assert never_fits(state) == ["b"]
    assert models(decide(NOW, state), Load) == ["a", "c"]


def test_a_load_that_was_never_seen_is_estimated_from_its_weights() -> None:
    known, unknown = Engine("a", 1, load_seconds=3.0), Engine("a", 1, weights=20 * 10**9)
    assert (load_seconds(known), load_seconds(unknown)) == (3.0, RULES.start_seconds + 20.0)


@given(rate=st.floats(0.01, 50), seconds=st.integers(1, 5))
def test_demand_is_what_comes_per_second_and_halves_when_nothing_comes(rate: float, seconds: int) -> None:
    demand, half = Demand(), Demand().half_life
    steps = 2000
    for number in range(steps):
        demand = demand.after(number * 10 * half / steps, round(rate * 10 * half / steps * 1000))
    assert math.isclose(demand.now(10 * half) / 1000, rate, rel_tol=0.1)
    assert math.isclose(demand.now((10 + seconds) * half), demand.now(10 * half) / 2**seconds, rel_tol=1e-6)


def test_the_trace_of_the_benchmark_is_what_its_maker_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Path(__file__).resolve().parents[3] / "bench"
    monkeypatch.syspath_prepend(str(bench))
    trace = import_module("_pool_trace")
    kept = trace.read(bench / "traces/pool.jsonl.gz")
    assert kept == trace.make(8)
    assert len({one.model for one in kept}) == 12


# Worlds --------------------------------------------------------------------------------------------------------------


@dataclass
class World:
    """A box whose loads, requests and drains take as long as was drawn, second by second."""

    memory: int
    engines: dict[str, Engine]
    load_takes: dict[str, int]
    fails: dict[str, int]
    """Loads of each that fail before one succeeds."""
    run_takes: int
    now: float = 0.0
    queue: dict[str, list[float]] = field(default_factory=dict)
    running: dict[str, list[float]] = field(default_factory=dict)
    ends: dict[str, float] = field(default_factory=dict)
    served: int = 0
    loads: int = 0
    actions: int = 0
    longest: float = 0.0

    def arrives(self, model: str) -> None:
        self.queue.setdefault(model, []).append(self.now)
        self.engines[model] = replace(self.engines[model], last_used=self.now)

    def step(self) -> None:
        """A second."""
        self.now += 1
        for model, engine in list(self.engines.items()):
            self.engines[model] = self._goes_on(model, engine)
        state = State(self.memory, [self._seen(one) for one in self.engines.values()])
        before = {one.model: one for one in state.engines}
        actions = decide(self.now, state)
        named = [one.model for one in actions]
        assert len(named) == len(set(named))
        for action in actions:
            self._does(action, before[action.model], state)
        self.actions += len(actions)
        assert self.held() <= self.memory
        assert sum(one.phase == "loading" for one in self.engines.values()) <= RULES.loads_at_once

    def held(self) -> int:
        return sum(one.memory for one in self.engines.values() if one.phase in ("loading", "loaded", "unloading"))

    def _seen(self, engine: Engine) -> Engine:
        waiting = self.queue.get(engine.model, [])
        return replace(
            engine,
            requests_waiting=len(waiting),
            oldest_wait=self.now - waiting[0] if waiting else 0.0,
            running=len(self.running.get(engine.model, [])),
        )

    def _does(self, action: Load | Evict, engine: Engine, state: State) -> None:
        model = action.model
        if isinstance(action, Load):
            assert engine.phase in ("absent", "failed")
            assert engine.pinned or engine.wish == "load" or engine.requests_waiting
            self.loads += 1
            self.ends[model] = self.now + self.load_takes[model]
            self.engines[model] = replace(self.engines[model], phase="loading")
        else:
            assert engine.phase == "loaded" and not engine.pinned
            if engine.running or engine.requests_waiting:
                impatient = [one for one in candidates(self.now, state) if one.oldest_wait >= RULES.busy]
                assert impatient or any(one.pinned or one.wish for one in state.engines)
            self.engines[model] = replace(self.engines[model], phase="unloading", loaded_at=None)

    def _goes_on(self, model: str, engine: Engine) -> Engine:
        running = [end for end in self.running.get(model, []) if end > self.now]
        self.running[model] = running
        if engine.phase == "loading" and self.now >= self.ends[model]:
            if self.fails[model]:
                self.fails[model] -= 1
                return replace(engine, phase="failed", failures=engine.failures + 1, failed_at=self.now)
            took = float(self.load_takes[model])
            wish = None if engine.wish == "load" else engine.wish
            engine = replace(engine, phase="loaded", loaded_at=self.now, failures=0, load_seconds=took, wish=wish)
        if engine.phase == "unloading" and not running:
            return replace(engine, phase="absent")
        if engine.phase == "loaded":
            waiting = self.queue.get(model, [])
            while waiting and len(running) < 4:
                self.longest = max(self.longest, self.now - waiting.pop(0))
                running.append(self.now + self.run_takes)
                self.served += 1
            if running:
                engine = replace(engine, last_used=self.now)
        return engine


@st.composite
def worlds(draw: st.DrawFn, pins: bool = True, fails: bool = True) -> World:
    count = draw(st.integers(2, 7))
    memory = draw(st.integers(8, 24))
    engines, room = {}, memory
    for number in range(count):
        size = draw(st.integers(1, memory))
        pinned = pins and draw(st.booleans()) and size <= room // 2
        room -= size if pinned else 0
        engines[f"m{number}"] = Engine(f"m{number}", size, pinned=pinned)
    return World(
        memory=memory,
        engines={
            name: replace(one, memory=min(one.memory, room)) if not one.pinned else one for name, one in engines.items()
        },
        load_takes={name: draw(st.integers(1, 20)) for name in engines},
        fails={name: draw(st.integers(0, 2)) if fails else 0 for name in engines},
        run_takes=draw(st.integers(1, 8)),
    )


@settings(max_examples=40)
@given(world=worlds(), data=st.data())
def test_whatever_comes_memory_is_never_exceeded_and_all_are_served_in_the_end(
    world: World, data: st.DataObject
) -> None:
    names = sorted(world.engines)
    for _ in range(60):
        for name in data.draw(st.lists(st.sampled_from(names), max_size=4)):
            world.arrives(name)
        if data.draw(st.integers(0, 9)) == 0:
            name = data.draw(st.sampled_from(names))
            world.engines[name] = replace(world.engines[name], wish=data.draw(st.sampled_from(["load", None])))
        world.step()

    def settled() -> bool:
        pinned = [one.phase == "loaded" for one in world.engines.values() if one.pinned]
        return not any(world.queue.values()) and all(pinned)

    for _ in range(1500):
        if settled():
            break
        world.step()
    assert settled()
    for _ in range(100):
        world.step()
    done = world.actions
    for _ in range(50):
        world.step()
    assert world.actions == done, "with nothing to do it does nothing"


@settings(max_examples=25)
@given(world=worlds(fails=False))
def test_none_starves_where_all_are_always_asked_for(world: World) -> None:
    names = sorted(world.engines)
    for _ in range(900):
        for name in names:
            if not world.queue.get(name):
                world.arrives(name)
        world.step()
    # In the worst case all others come first, one after the other: each drains, loads and has its time.
    turn = RULES.starving + 20 + 8 + max(RULES.stay, RULES.stay_loads * 20) + 5
    oldest = max((world.now - waiting[0] for waiting in world.queue.values() if waiting), default=0.0)
    assert max(oldest, world.longest) <= turn * len(names)


@settings(max_examples=25)
@given(world=worlds(pins=False, fails=False))
def test_no_load_is_in_vain_however_many_want_the_memory(world: World) -> None:
    names = sorted(world.engines)
    for _ in range(600):
        for name in names:
            if not world.queue.get(name):
                world.arrives(name)
        world.step()
    on_the_way = sum(one.phase == "loading" for one in world.engines.values())
    assert world.served >= world.loads - on_the_way
    # Each stays as long as the policy says, and loading takes what it takes: that bounds the loads of a model.
    for name in names:
        assert world.loads <= sum(600 / (world.load_takes[one] + RULES.stay) + 1 for one in names), name


# A box that is short of memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory", "reach", "gone"),
    [
        pytest.param(24, "", [], id="without a word of the guard nothing goes"),
        pytest.param(24, "idle", ["old"], id="the one that is missed least"),
        pytest.param(14, "idle", ["old", "used"], id="idle ones only, even where that is too little"),
        pytest.param(14, "unpinned", ["old", "used"], id="no more than has to"),
        pytest.param(8, "unpinned", ["old", "used", "busy"], id="what runs requests after them"),
        pytest.param(0, "unpinned", ["old", "used", "busy"], id="what is pinned stays"),
        pytest.param(0, "pinned", ["old", "used", "busy", "pinned"], id="unless nothing else is left"),
    ],
)
def test_where_the_memory_has_become_less_what_is_idle_goes_first(memory: int, reach: Reach, gone: list[str]) -> None:
    engines = [
        loaded("pinned", 8, pinned=True),
        loaded("busy", 6, running=1),
        loaded("used", 6, last_used=NOW - 1),
        loaded("old", 6),
        asked("new", 2, 99),
    ]
    actions = decide(NOW, State(memory * GIB, engines, hold=True, reach=reach))
    assert models(actions, Evict) == gone and models(actions, Load) == []


def test_nothing_is_loaded_and_nothing_goes_for_it_while_the_box_is_short() -> None:
    engines = [loaded("old", 6), asked("new", 4, 99), Engine("pinned", GIB, pinned=True)]
    assert decide(NOW, State(100 * GIB, engines, hold=True)) == []
    assert decide(NOW, State(8 * GIB, engines, hold=True)) == []
