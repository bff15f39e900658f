"""Counters go on through restarts, missed reads and pages of other processes, and count nothing twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.watch.totals import KEPT, Totals

TOKENS = "generation_tokens"


def sums_of(reads: list[tuple[float, str | None]]) -> list[float]:
    """The sum after each of the reads: value, and the process that says it."""
    totals, found = Totals(), []
    for value, process in reads:
        totals.read({TOKENS: value}, process)
        found.append(totals.sums[TOKENS])
    return found


@pytest.mark.parametrize(
    ("what", "reads", "sums"),
    [
        (
            "one address, successive reads of different processes, as through a proxy",
            [(289957, "a"), (289963, "a"), (304457, "b"), (289970, "a"), (304460, "b")],
            [289957, 289963, 594420, 594427, 594430],
        ),
        ("a restart: 1000 after 500", [(500, "a"), (1000, "b")], [500, 1500]),
        ("the same process: 1000 after 500", [(500, "a"), (1000, "a")], [500, 1000]),
        ("nobody says which process: lower is another", [(500, None), (900, None), (20, None)], [500, 900, 920]),
        ("a counter that began anew in the same process", [(500, "a"), (3, "a"), (9, "a")], [500, 503, 509]),
        ("the process says its name from the second page on", [(500, None), (510, "a"), (7, "b")], [500, 510, 517]),
        ("the sum of floats in another order is no restart", [(0.6000000000000001, "a"), (0.6, "a")], [0.6, 0.6]),
        ("nothing counted yet", [(0, "a"), (0, "b"), (4, "b")], [0, 0, 4]),
    ],
)
def test_what_follows_what(what: str, reads: list[tuple[float, str | None]], sums: list[float]) -> None:
    assert sums_of(reads) == pytest.approx(sums), what


def test_a_restart_is_seen_in_the_run_of_the_unit_where_the_page_names_no_process() -> None:
    totals = Totals()
    for value, run in ((500.0, "one"), (600.0, "two"), (650.0, "two")):
        totals.read({TOKENS: value}, None, run)
    assert (totals.sums[TOKENS], totals.restarts) == (1150, 1)


def test_within_one_run_without_names_one_counter_that_is_lower_begins_them_all_anew() -> None:
    totals = Totals()
    totals.read({TOKENS: 500, "preemptions": 3}, None, "run")
    totals.read({TOKENS: 20, "preemptions": 5}, None, "run")
    totals.read({TOKENS: 30, "preemptions": 5}, None, "run")
    assert totals.sums == {TOKENS: 530, "preemptions": 8}
    assert totals.restarts == 1


def test_a_counter_that_a_page_lacks_keeps_its_sum_and_one_that_no_page_had_is_not_known() -> None:
    totals = Totals()
    totals.read({TOKENS: 500, "requests": 7}, "a")
    totals.read({TOKENS: 600}, "a")
    assert totals.sums == {TOKENS: 600, "requests": 7}


def test_what_old_processes_counted_stays_when_they_are_no_longer_told_apart() -> None:
    totals = Totals()
    for number in range(3 * KEPT):
        totals.read({TOKENS: 10}, f"process {number}")
    assert totals.sums[TOKENS] == 30 * KEPT
    assert totals.restarts == 3 * KEPT - 1


Names = Literal["the page", "the unit", "nobody"]
EVENTS = st.lists(
    st.one_of(st.integers(0, 1000), st.sampled_from(["read", "missed", "restart"])), min_size=1, max_size=60
)


@dataclass
class Counting:
    """An engine that counts, restarts and is read, and what is known of it."""

    names: Names
    totals: Totals = field(default_factory=Totals)
    true: float = 0.0
    lost: float = 0.0
    since_read: float = 0.0
    value: float = 0.0
    starts: int = 1

    def happens(self, event: int | str) -> None:
        if event == "restart":
            self.lost += self.since_read
            self.value = self.since_read = 0.0
            self.starts += 1
        elif event == "read":
            name = str(self.starts)
            page, unit = (name if self.names == "the page" else None), (None if self.names == "nobody" else name)
            self.totals.read({TOKENS: self.value}, page, unit)
            self.since_read = 0.0
        elif isinstance(event, int):
            self.true += event
            self.value += event
            self.since_read += event

    @property
    def sum(self) -> float:
        return self.totals.sums.get(TOKENS, 0.0)


@given(EVENTS, st.sampled_from(["the page", "the unit"]))
def test_sums_are_the_true_counts_but_for_what_was_counted_between_the_last_read_and_a_restart(
    events: list[int | str], names: Names
) -> None:
    engine = Counting(names)
    before = 0.0
    for event in events:
        engine.happens(event)
        assert before <= engine.sum <= engine.true
        before = engine.sum
    engine.happens("read")
    assert engine.sum == engine.true - engine.lost


@given(EVENTS)
def test_sums_never_go_backwards_nor_beyond_the_truth_where_nobody_says_which_process_it_is(
    events: list[int | str],
) -> None:
    engine = Counting("nobody")
    sums = []
    for event in events:
        engine.happens(event)
        sums.append(engine.sum)
        assert engine.sum <= engine.true
    assert all(sooner <= later for sooner, later in pairwise(sums))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50), st.booleans()), max_size=60))
def test_pages_that_come_from_several_processes_in_turn_add_up_to_all_of_them(
    events: list[tuple[str, int, bool]],
) -> None:
    """As they do through a proxy that spreads the reads."""
    counted: dict[str, float] = {}
    seen: dict[str, float] = {}
    totals = Totals()
    for process, more, is_read in events:
        counted[process] = counted.get(process, 0.0) + more
        if is_read:
            totals.read({TOKENS: counted[process]}, process)
            seen[process] = counted[process]
        assert totals.sums.get(TOKENS, 0.0) == sum(seen.values())
