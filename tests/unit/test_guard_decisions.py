"""What the guard decides: tables of what happens to a box, second by second, and what must never happen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.guard.decide import HOUR, Guard
from fleetctl.guard.seen import Action, Answer, Engine, Look, Memory, Settings

GIB = 1024**3
UNIT = "fleetctl-replicas-qwen.service"
DOES = ("stop", "kill", "start", "kill_and_restart")


def settings(**changes: Any) -> Settings:
    known = Settings(
        box="a",
        address="10.0.0.1",
        port=7411,
        proxies=("10.0.0.1",),
        others={"b": "10.0.0.2"},
        act="restart",
        memory_low=4 * GIB,
        pressure=40.0,
        silent=30.0,
        answer_within=60.0,
        idle=300.0,
        restarts=3,
    )
    return known._replace(**changes)


@dataclass
class Box:
    """A box with one engine, which does what the guard wants a second later; time is ours."""

    settings: Settings = field(default_factory=settings)
    available: float = 20 * GIB
    others: float = 0.0
    """What something else takes, bytes a second."""
    engine_holds: float = 80 * GIB
    load_seconds: int = 20
    requests: int = 0
    finish: bool = True
    """Requests finish once the proxy sends no more."""
    hung: bool = False
    heals: bool = True
    """A restart helps."""
    held: str = ""
    pressure: float | None = 0.0
    proxied: bool = True
    swap: tuple[int, int] = (0, 0)
    active: str = "active"
    now: float = 1000.0
    runs: int = 1
    counter: float = 0.0
    told: int = 0
    answer: Answer | None = None
    done: list[tuple[float, Action]] = field(default_factory=list)
    guard: Guard = field(init=False)
    _asked: float | None = None
    _load: int = 0

    def __post_init__(self) -> None:
        self.guard = Guard(self.settings)

    def look(self) -> Look:
        busy = self.active == "active"
        self.told = self.told + 1 if self.guard.out(UNIT) and self.proxied else 0
        if self.told and self.finish and not self.hung:
            self.requests = 0
        if busy and self.requests and not self.hung:
            self.counter += 10
        counters = (("generation", self.counter), ("running", float(self.requests))) if busy else None
        engine = Engine(
            UNIT,
            self.active,
            run=str(self.runs),
            most=int(81 * GIB),
            running=self.requests if busy else 0,
            counters=counters,
            answer=self.answer,
            told=self.told,
        )
        memory = Memory(120 * GIB, int(max(0, self.available)), *self.swap, self.pressure)
        return Look(self.now, memory, (engine,), self.held)

    def second(self) -> None:
        self.now += 1
        self.available -= self.others
        if self._asked is not None:
            silent = self.hung and self.now - self._asked >= self.settings.answer_within
            if self.active != "active":
                self.answer, self._asked = Answer(self._asked, False, False, "refused"), None
            elif not self.hung:
                self.answer, self._asked = Answer(self._asked, True, False, "answered"), None
                self.counter += 1
            elif silent:
                self.answer, self._asked = Answer(self._asked, False, True, "silence"), None
        if self._load:
            self._load -= 1
            if not self._load:
                self.active = "active"
        for action in self.guard.see(self.look()):
            self.done.append((self.now, action))
            self._follow(action)

    def _follow(self, action: Action) -> None:
        if action.kind == "ask" and self._asked is None:
            self._asked = self.now
        elif action.kind in ("stop", "kill") and self.active != "inactive":
            self.active, self.requests = "inactive", 0
            self.available += self.engine_holds
        elif action.kind == "start":
            self.available -= self.engine_holds
            self._begin()
        elif action.kind == "kill_and_restart":
            self._begin()

    def _begin(self) -> None:
        self.active, self._load, self.requests = "activating", self.load_seconds, 0
        self.runs += 1
        self.hung = self.hung and not self.heals

    def seconds(self, count: int, until: Callable[[], bool] = lambda: False) -> Box:
        for _ in range(count):
            self.second()
            if until():
                break
        return self

    def kinds(self, *only: str) -> list[str]:
        return [action.kind for _, action in self.done if action.kind in (only or DOES)]

    def said(self) -> str:
        return "\n".join(f"{action.kind} {action.why}" for _, action in self.done)

    def at(self, kind: str) -> float:
        return next(at for at, action in self.done if action.kind == kind)


def test_a_box_with_enough_of_everything_is_left_alone() -> None:
    box = Box(requests=4).seconds(600)
    assert box.done == [] and box.guard.out(UNIT) == ""


def test_memory_runs_short_the_copy_leaves_the_proxy_first_and_stops_when_its_requests_are_done() -> None:
    box = Box(requests=5, others=0.2 * GIB)
    box.seconds(200, until=lambda: bool(box.guard.out(UNIT)))
    assert box.active == "active" and box.kinds() == [] and box.available > 3 * GIB
    box.others = 0
    box.seconds(10, until=lambda: box.active == "inactive")
    assert box.kinds() == ["stop"] and "cut" not in box.said()
    assert box.guard.out(UNIT) == "memory is short"


def test_it_starts_again_only_when_there_is_room_for_what_it_gave_back_and_comes_back_when_it_answers() -> None:
    box = Box(requests=1, available=3.9 * GIB, engine_holds=80 * GIB)
    box.seconds(60)
    assert box.kinds() == ["stop"]  # the other still has the memory: a start would bring the shortage back
    box.seconds(600)
    assert box.kinds() == ["stop"]
    box.available += 12 * GIB
    box.seconds(5, until=lambda: "start" in box.kinds())
    assert box.kinds() == ["stop", "start"] and box.guard.out(UNIT)
    box.seconds(box.load_seconds - 1)
    assert box.guard.out(UNIT)
    box.seconds(10)
    assert box.guard.out(UNIT) == "" and box.kinds() == ["stop", "start"]


@pytest.mark.parametrize(
    ("rate", "longest"),
    [(0.0, 32), (0.05, 32), (0.3, 9), (1.0, 5), (8.0, 1)],
)
def test_the_faster_memory_falls_the_shorter_running_requests_are_waited_for(rate: float, longest: float) -> None:
    box = Box(requests=3, finish=False, available=20 * GIB if rate else 3.9 * GIB, others=rate * GIB)
    box.seconds(500, until=lambda: bool(box.guard.out(UNIT)))
    out = box.now
    box.seconds(60, until=lambda: box.active == "inactive")
    assert box.at("stop") - out <= longest
    assert "3 requests are cut" in box.said()


def test_what_stops_too_slowly_for_the_memory_that_is_left_is_killed() -> None:
    box = Box(others=0.4 * GIB, available=6 * GIB, finish=False, requests=1)
    box._follow = lambda action: None  # type: ignore[method-assign]  # systemd takes its time
    box.seconds(30)
    assert box.kinds()[:2] == ["stop", "kill"]


@pytest.mark.parametrize(
    ("what", "short"),
    [
        ({"available": 3.9 * GIB}, True),
        ({"available": 4.1 * GIB}, False),
        ({"available": 6 * GIB, "pressure": 60.0}, True),
        ({"available": 20 * GIB, "pressure": 60.0}, False),  # of a service with a limit of its own
        ({"available": 6 * GIB, "pressure": None}, False),
        ({"available": 6 * GIB, "swap": (8 * GIB, GIB // 2)}, True),
        ({"available": 6 * GIB, "swap": (8 * GIB, 7 * GIB)}, False),
        ({"available": 20 * GIB, "swap": (8 * GIB, 0)}, False),
    ],
)
def test_what_counts_as_short(what: dict[str, Any], short: bool) -> None:
    box = Box(**what).seconds(5)
    assert ("memory is short" in box.said()) is short, box.said()


@pytest.mark.parametrize(("act", "done"), [("restart", ["stop", "start"]), ("stop", ["stop"]), ("watch", [])])
def test_what_act_says_is_done(act: str, done: list[str]) -> None:
    box = Box(settings=settings(act=act), available=3 * GIB).seconds(30)
    box.available += 20 * GIB
    box.seconds(60)
    assert box.kinds() == done
    assert (box.guard.out(UNIT) != "") is (act == "stop")
    assert "memory is short" in box.said()


def test_one_that_somebody_starts_again_is_proved_and_comes_back() -> None:
    box = Box(settings=settings(act="stop"), available=3 * GIB).seconds(30)
    box.available += 20 * GIB
    box._follow(Action("start", UNIT, "by hand"))
    box.seconds(60)
    assert box.guard.out(UNIT) == "" and box.kinds() == ["stop"]


def test_an_engine_whose_counters_stand_still_is_asked_and_when_it_is_silent_killed_and_started() -> None:
    box = Box(requests=3, hung=True).seconds(29)
    assert box.kinds("ask") == []
    box.seconds(20)
    assert box.kinds("ask") == ["ask"] and box.kinds() == []
    box.seconds(70)
    assert box.kinds() == ["kill_and_restart"]
    assert "no counter has moved" in box.said() and "no answer" not in box.kinds()
    box.seconds(30)
    assert box.guard.out(UNIT) == "" and box.kinds() == ["kill_and_restart"]


def test_out_of_the_proxy_comes_before_the_restart() -> None:
    box = Box(requests=3, hung=True)
    box.seconds(200, until=lambda: bool(box.guard.out(UNIT)))
    assert box.kinds() == []
    box.seconds(3)
    assert box.kinds() == ["kill_and_restart"]


def test_a_long_prompt_that_only_fills_the_cache_is_no_hang() -> None:
    box = Box(requests=1)
    for _ in range(400):
        box.counter += 0.001
        box.second()
    assert box.done == []


def test_an_engine_that_answers_though_its_counters_stand_still_is_left_alone() -> None:
    box = Box(requests=1)
    box.seconds(5)
    for _ in range(300):
        box.counter -= 10  # what it does shows in no counter
        box.second()
    assert "ask" in box.kinds("ask") and box.kinds() == []


def test_an_idle_engine_is_asked_now_and_then_and_a_hang_is_found() -> None:
    box = Box().seconds(1000)
    assert 2 <= len(box.kinds("ask")) <= 4 and box.kinds() == []
    box.hung = True
    box.seconds(400)
    assert box.kinds() == ["kill_and_restart"]


def test_back_off_and_limit_for_one_that_hangs_again_and_again() -> None:
    box = Box(requests=2, hung=True, heals=False, load_seconds=2, settings=settings(answer_within=5.0, silent=5.0))
    box.seconds(1500)
    times = [at for at, action in box.done if action.kind == "kill_and_restart"]
    assert len(times) == 3
    assert times[1] - times[0] >= 30 and times[2] - times[1] >= 60
    assert "which is the limit" in box.said()
    assert box.guard.out(UNIT)  # it does not answer: it stays out of the proxy
    box.hung = False
    box.seconds(60)
    assert box.guard.out(UNIT) == ""


def test_a_systemd_that_does_not_answer_for_a_moment_changes_nothing() -> None:
    box = Box(available=3.9 * GIB, requests=1, finish=False)
    box.seconds(2)
    assert box.guard.phases() == {UNIT: "leaving"}
    box.active = ""
    box.seconds(3)
    assert box.guard.phases() == {UNIT: "leaving"} and box.guard.out(UNIT)
    box.active = "active"
    box.seconds(40)
    assert box.kinds() == ["stop"]


def test_a_guard_that_is_started_anew_still_counts() -> None:
    box = Box(requests=2, hung=True, heals=False, load_seconds=2, settings=settings(answer_within=5.0, silent=5.0))
    box.seconds(400)
    box.guard = Guard(box.settings, box.guard.keep())
    box.seconds(600)
    assert len(box.kinds("kill_and_restart")) == 3


def test_a_guard_that_is_started_anew_starts_what_the_one_before_has_stopped() -> None:
    box = Box(available=3 * GIB).seconds(30)
    box.guard = Guard(box.settings, box.guard.keep())
    box.available += 20 * GIB
    box.seconds(60)
    assert box.kinds() == ["stop", "start"] and box.guard.out(UNIT) == ""


def test_while_somebody_works_on_the_fleet_nothing_is_done_and_the_proxy_hears_nothing_bad() -> None:
    box = Box(available=3.9 * GIB, requests=2, finish=False)
    box.seconds(3)
    assert box.guard.out(UNIT)
    box.held = "ops@laptop works on the fleet"
    box.second()
    assert box.guard.out(UNIT) == ""
    box.available = 0.1 * GIB
    box.seconds(200)
    assert box.kinds() == [] and "standing back: ops@laptop" in box.said()
    box.held = ""
    box.seconds(3)
    assert box.guard.out(UNIT)


def test_one_that_it_stopped_and_a_move_left_alone_is_started_after_the_move() -> None:
    box = Box(available=3 * GIB).seconds(30)
    box.held = "the cutover by ops has not ended"
    box.available += 20 * GIB
    box.seconds(60)
    assert box.kinds() == ["stop"]
    box.held = ""
    box.seconds(60)
    assert box.kinds() == ["stop", "start"]


def test_what_others_give_back_at_the_same_time_is_not_taken_for_the_engines_own() -> None:
    box = Box(available=3 * GIB).seconds(4)
    box.available += 30 * GIB
    box.seconds(60)
    assert box.kinds() == ["stop", "start"]


def test_an_engine_that_takes_its_memory_while_it_loads_is_no_shortage() -> None:
    box = Box(available=100 * GIB, active="activating", others=5 * GIB)
    box.seconds(18)
    box.others = 0
    box.seconds(60)
    assert box.available == 10 * GIB and box.done == []


def test_a_unit_that_an_operator_stopped_stays_stopped() -> None:
    box = Box(active="inactive").seconds(500)
    assert box.done == []


def test_without_a_proxy_that_asks_it_goes_on_after_a_moment() -> None:
    box = Box(available=3.9 * GIB, proxied=False).seconds(8)
    assert box.kinds() == ["stop"]


def test_a_follower_waits_until_its_head_has_had_time_to_tell_the_proxy() -> None:
    guard, done = Guard(settings()), []
    for second in range(12):
        told = 2 * second if guard.out(UNIT) else 0
        engine = Engine(UNIT, "active", run="1", answers=False, counters=(), told=told)
        looked = Look(second, Memory(120 * GIB, 3 * GIB), (engine,))
        done += [(second, action.kind) for action in guard.see(looked) if action.kind in DOES]
    assert [kind for _, kind in done] == ["stop"] and 2 <= done[0][0] <= 4


def two(now: float, available: float, one: str, other: str) -> Look:
    engines = (
        Engine("fleetctl-next-large.service", one, run="1", counters=()),
        Engine("fleetctl-next-small.service", other, run="1", counters=()),
    )
    return Look(now, Memory(120 * GIB, int(available)), engines)


def test_of_two_engines_the_larger_one_goes_first_and_the_other_only_if_that_is_not_enough() -> None:
    guard, done = Guard(settings()), []
    states = {"fleetctl-next-large.service": "active", "fleetctl-next-small.service": "active"}
    for second in range(60):
        for action in guard.see(two(second, 3 * GIB, *states.values())):
            if action.kind == "stop":
                done.append((second, action.unit))
                states[action.unit] = "inactive"
    assert [unit for _, unit in done] == list(states)
    assert done[1][0] - done[0][0] >= 10


UNITS = ("one.service", "two.service")


@st.composite
def engines(draw: st.DrawFn) -> Iterable[Engine]:
    found = []
    for unit in draw(st.sets(st.sampled_from(UNITS))):
        asked = draw(st.floats(0, 2000))
        answer = draw(st.none() | st.builds(Answer, st.just(asked), st.booleans(), st.booleans(), st.just("")))
        found.append(
            Engine(
                unit,
                draw(st.sampled_from(["active", "active", "active", "activating", "inactive", "failed", ""])),
                run=draw(st.sampled_from("123")),
                answers=draw(st.booleans()),
                running=draw(st.integers(0, 2)),
                counters=draw(st.none() | st.floats(0, 3).map(lambda tokens: (("tokens", round(tokens)),))),
                answer=answer,
                told=draw(st.integers(0, 1)),
            )
        )
    return tuple(found)


LOOKS = st.tuples(
    st.sampled_from([1.0, 1.0, 5.0, 40.0, 400.0]),
    st.integers(0, 12).map(lambda gib: gib * GIB),
    st.none() | st.floats(0, 100),
    engines(),
    st.sampled_from(["", "", "", "held"]),
)


@given(st.lists(LOOKS, max_size=80), st.integers(1, 3), st.sampled_from(["restart", "stop", "watch"]))
def test_whatever_is_seen_the_limits_hold(looks: list[Any], restarts: int, act: str) -> None:
    guard = Guard(settings(restarts=restarts, act=act, silent=5.0, answer_within=5.0))
    now, starts = 0.0, {unit: list[float]() for unit in UNITS}
    out_before: set[str] = set()
    for passed, available, pressure, seen, held in looks:
        now += passed
        actions = guard.see(Look(now, Memory(120 * GIB, available, 0, 0, pressure), seen, held))
        does = [action for action in actions if action.kind in DOES]
        assert not (held and does), "never during a lock"
        assert {action.unit for action in does} <= {engine.unit for engine in seen}, "never what is not in the layout"
        assert not (act == "watch" and does)
        for action in does:
            assert action.unit in out_before, "out of the proxy first"
            if action.kind in ("start", "kill_and_restart"):
                starts[action.unit].append(now)
                recent = [at for at in starts[action.unit] if now - at < HOUR]
                assert len(recent) <= restarts, "never more often than that"
        out_before = {engine.unit for engine in seen if guard.out(engine.unit)}
        assert not (held and out_before)


def test_a_core_that_hung_while_it_had_nothing_to_do_is_found_by_the_connections_of_the_proxy() -> None:
    """It goes on saying that nothing runs and nothing waits: /metrics has what its last step told."""
    from fleetctl.guard.liveness import Liveness

    def asked_after(open_: int) -> float | None:
        watched = Liveness(settings(idle=0.0))
        for second in range(200):
            seen = Engine(UNIT, "active", run="1", open=open_, counters=(("generation", 7.0),))
            if watched.see(1000.0 + second, seen).ask:
                return second
        return None

    assert asked_after(0) is None
    found = asked_after(3)
    assert found is not None and 30 <= found <= 45
