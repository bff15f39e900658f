"""Which requests become one call: of like cost, around the oldest, and nobody is forgotten."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.pool.worker.compose import MOST_LOOKED, Size, alike, in_order
from fleetctl.pool.worker.pace import Pace

SIZES = st.lists(st.builds(Size, st.integers(1, 1000), st.integers(1, 5)), min_size=1, max_size=80)


def sizes(*costs: int) -> list[Size]:
    return [Size(cost) for cost in costs]


@pytest.mark.parametrize(
    ("why", "costs", "chosen"),
    [
        ("the long ones go together with the oldest", (10, 200, 11, 190, 9, 210), [0, 1, 3, 5]),
        ("with an old long one its like go, and of the others the longest", (100, 10, 90, 11, 95), [0, 2, 3, 4]),
        ("the order stays where all cost the same", (50, 50, 50, 50, 50), [0, 1, 2, 3]),
        ("and where the estimates differ by little", (50, 45, 48, 52, 50), [0, 1, 2, 3]),
        ("the oldest is taken whatever it costs", (5000,), [0]),
        ("a long one waits for its like rather than have short ones wait for it", (10, 200, 11, 10, 9), [0, 2, 3, 4]),
    ],
)
def test_a_call_of_four(why: str, costs: tuple[int, ...], chosen: list[int]) -> None:
    assert alike(sizes(*costs), 1 << 20, 4) == chosen, why


def test_what_counts_is_the_longest_input() -> None:
    # Ten inputs of 20 tokens are like ones of 20, not like one of 200.
    assert alike([Size(20), Size(200, 10), Size(200), Size(21), Size(19)], 1 << 20, 13) == [0, 1, 3, 4]


@given(waiting=SIZES, batch_tokens=st.integers(1, 3000), most_inputs=st.integers(1, 12))
def test_a_call_has_the_oldest_and_no_more_than_fits(waiting: list[Size], batch_tokens: int, most_inputs: int) -> None:
    for choose in (alike, in_order):
        group = choose(waiting, batch_tokens, most_inputs)
        assert group[0] == 0
        assert group == sorted(set(group))
        if len(group) > 1:
            assert sum(waiting[index].tokens for index in group) <= batch_tokens
            assert sum(waiting[index].inputs for index in group) <= most_inputs


@given(waiting=SIZES, most_inputs=st.integers(1, 12))
def test_a_call_amounts_to_no_less_than_the_oldest_would(waiting: list[Size], most_inputs: int) -> None:
    def value(group: list[int]) -> float:
        return sum(waiting[index].tokens for index in group) / max(waiting[index].longest for index in group)

    assert value(alike(waiting, 1 << 20, most_inputs)) >= value(in_order(waiting, 1 << 20, most_inputs))


@given(seed=st.integers(0, 1 << 32), coming=st.integers(0, 8), spread=st.floats(0, 2))
def test_nobody_waits_for_more_calls_than_there_were_requests_before(seed: int, coming: int, spread: float) -> None:
    """However costs are and whatever comes meanwhile; by the order of arrival alone."""
    rng = random.Random(seed)
    number, calls = 0, 0
    waiting: list[tuple[int, int, Size]] = []  # its number, calls before it came with those before it, its size
    for _ in range(40):
        for _ in range(coming):
            waiting.append((number, calls + len(waiting), Size(1 + round(100 * rng.lognormvariate(0, spread)))))
            number += 1
        if not waiting:
            continue
        group = alike([size for _, _, size in waiting], 1 << 20, 8)
        assert all(calls <= waiting[index][1] for index in group)
        calls += 1
        waiting = [one for index, one in enumerate(waiting) if index not in group]


def test_choosing_brings_more_than_the_order_of_arrival() -> None:
    """Costs that differ as 1 to 100, 32 to choose from; time as of a padded batch, and as of one that is not quite."""
    rng = random.Random("compose")

    def seconds(choose: object, share: float) -> float:
        waiting: list[Size] = []
        took = 0.0
        for _ in range(150):
            while len(waiting) < 32:
                waiting.append(Size(round(10 * 100 ** rng.random())))
            group = choose(waiting, 1 << 20, 8)  # type: ignore[operator]
            costs = [waiting[index].tokens for index in group]
            work = sum(costs)
            took += (max(costs) + share * (work - max(costs))) / work
            waiting = [one for index, one in enumerate(waiting) if index not in group]
        return took

    for share in (0.25, 0.1):
        assert seconds(in_order, share) > 1.25 * seconds(alike, share)


def test_no_more_are_looked_at_than_cost_no_time() -> None:
    waiting = [*sizes(10, *([1000] * (MOST_LOOKED - 1))), *sizes(*([10] * 10))]
    assert max(alike(waiting, 1 << 20, 8)) < MOST_LOOKED


@pytest.mark.parametrize(
    ("costs", "varied"),
    [((50, 50, 50), False), ((40, 50, 65, 45, 55), False), ((2, 5, 20, 60, 200), True), ((), False)],
)
def test_requests_are_varied_when_estimates_alone_cannot_be_the_reason(costs: tuple[int, ...], varied: bool) -> None:
    pace = Pace()
    for _ in range(100):
        for cost in costs:
            pace.came(cost)
    assert pace.varied is varied
