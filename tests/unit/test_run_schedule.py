"""The order in which steps run: forward, backward, and what a failure or a stop does to the rest."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.run.schedule import among, reversed_order, run_in_order

Order = dict[str, list[str]]


@st.composite
def orders(draw: st.DrawFn) -> Order:
    """Up to a dozen names, each after some of those before it."""
    names = [f"s{number}" for number in range(draw(st.integers(1, 12)))]
    return {
        name: draw(st.lists(st.sampled_from(names[:number]), unique=True, max_size=3)) if number else []
        for number, name in enumerate(names)
    }


def all_before(after: Mapping[str, list[str]], name: str) -> set[str]:
    """Everything that a name comes after, directly or not."""
    found: set[str] = set()
    todo = list(after[name])
    while todo:
        one = todo.pop()
        if one not in found:
            found.add(one)
            todo += after[one]
    return found


class Log:
    """Notes when each action begins and ends; actions named in ``bad`` fail."""

    def __init__(self, bad: frozenset[str] = frozenset()) -> None:
        self.events: list[tuple[str, str]] = []
        self._bad = bad
        self._lock = threading.Lock()

    def __call__(self, name: str) -> None:
        with self._lock:
            self.events.append(("begin", name))
        with self._lock:
            self.events.append(("end", name))
        if name in self._bad:
            raise RuntimeError(name)

    def at(self, kind: str, name: str) -> int:
        return self.events.index((kind, name))

    def begun(self) -> set[str]:
        return {name for kind, name in self.events if kind == "begin"}


@settings(max_examples=60)
@given(orders())
def test_every_name_runs_once_and_after_all_it_comes_after(after: Order) -> None:
    log = Log()
    assert run_in_order(after, log) == {}
    assert sorted(name for kind, name in log.events if kind == "begin") == sorted(after)
    for name, befores in after.items():
        for before in befores:
            assert log.at("end", before) < log.at("begin", name)


@settings(max_examples=60)
@given(orders(), st.data())
def test_nothing_that_depends_on_a_failure_is_begun(after: Order, data: st.DataObject) -> None:
    bad = data.draw(st.sampled_from(sorted(after)))
    log = Log(frozenset({bad}))
    failures = run_in_order(after, log)
    assert set(failures) == {bad}
    assert not {name for name in log.begun() if bad in all_before(after, name)}


@settings(max_examples=60)
@given(orders(), st.data())
def test_with_keep_going_everything_is_tried_in_order(after: Order, data: st.DataObject) -> None:
    bad = frozenset(data.draw(st.sets(st.sampled_from(sorted(after)))))
    log = Log(bad)
    failures = run_in_order(after, log, keep_going=True)
    assert set(failures) == bad
    assert log.begun() == set(after)
    for name, befores in after.items():
        for before in befores:
            assert log.at("end", before) < log.at("begin", name)


def test_after_a_failure_nothing_is_begun_but_what_runs_is_waited_for() -> None:
    failed = threading.Event()
    ended = []

    def action(name: str) -> None:
        if name == "bad":
            failed.set()
            raise RuntimeError
        failed.wait(10)
        ended.append(name)

    seen: list[bool] = []
    failures = run_in_order({"bad": [], "slow": [], "later": ["slow"]}, action, watch=seen.append)
    assert set(failures) == {"bad"}
    assert ended == ["slow"]


def test_once_stopped_nothing_is_begun_and_the_watch_is_told() -> None:
    stop = threading.Event()
    told = threading.Event()
    log = Log()

    def action(name: str) -> None:
        log(name)
        stop.set()
        assert told.wait(10), "the watch was not told that nothing new will begin"

    def watch(halted: bool) -> None:
        if halted:
            told.set()

    assert run_in_order({"one": [], "two": ["one"]}, action, stopped=stop.is_set, watch=watch) == {}
    assert log.begun() == {"one"}


def test_names_that_are_only_mentioned_are_ignored() -> None:
    log = Log()
    assert run_in_order({"one": ["elsewhere"]}, log) == {}
    assert log.begun() == {"one"}


@given(orders())
def test_the_reverse_of_the_reverse_is_the_order(after: Order) -> None:
    assert reversed_order(reversed_order(after)) == {name: set(befores) for name, befores in after.items()}


@given(orders(), st.data())
def test_undoing_a_choice_of_steps_respects_the_order_through_those_left_out(after: Order, data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.sampled_from(sorted(after))))
    log = Log()
    assert run_in_order(reversed_order(among(after, chosen)), log, keep_going=True) == {}
    assert log.begun() == chosen
    for name in chosen:
        for before in all_before(after, name) & chosen:
            assert log.at("end", name) < log.at("begin", before)
