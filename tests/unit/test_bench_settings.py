"""Settings that need a restart: what is started, and what is said of measurements that are noisy."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable, Mapping

import pytest

from fleetctl.bench.difference import difference, student
from fleetctl.bench.settings import Outcome, Says, Setting, Started, as_record, from_record, most_starts, search

Values = Mapping[str, float | None]
BATCHED = Setting("batched_tokens", 8192, (2048, 4096))
DRAFTS = Setting("speculative_tokens", 4, (2, 6))


def run(
    settings: list[Setting], start: Callable[[Values, int], Started]
) -> tuple[Outcome, list[dict[str, float | None]]]:
    """The outcome of a search on engines that ``start`` simulates, and what was started."""
    going, started = search(settings), list[dict[str, float | None]]()
    ask = next(going)
    while True:
        started.append(dict(ask.values))
        try:
            ask = going.send(start(ask.values, len(started)))
        except StopIteration as end:
            return end.value, started


def engine(
    true: Callable[[Values], float], noise: float = 0.01, seed: int = 0, windows: int = 4, drift: float = 0.0
) -> Callable[[Values, int], Started]:
    rng = random.Random(seed)

    def start(values: Values, number: int) -> Started:
        rate = true(values) * (1 + drift * number)
        return Started(dict(values), tuple(rate * rng.gauss(1, noise) for _ in range(windows)))

    return start


def says(outcome: Outcome) -> dict[float, Says]:
    return {one.value: one.says for one in outcome.verdicts}


@pytest.mark.parametrize(
    ("freedom", "value"), [(1.0, 12.706), (3.9, 3.182), (30, 2.042), (31, 1.96), (1e9, 1.96), (0.7, 12.706)]
)
def test_students_t_is_that_of_the_tables(freedom: float, value: float) -> None:
    assert student(freedom) == value


def test_the_interval_of_a_difference_holds_what_is_true_about_as_often_as_it_says() -> None:
    rng, hits = random.Random(1), 0
    for _ in range(600):
        before = [rng.gauss(100, 3) for _ in range(4)]
        after = [rng.gauss(105, 6) for _ in range(4)]
        found = difference(before, after)
        hits += found.low <= 0.05 <= found.high
    assert 0.92 <= hits / 600 <= 0.99
    with pytest.raises(ValueError, match="two measurements"):
        difference([1.0], [1.0, 2.0])


def test_a_better_setting_is_tried_again_in_the_other_order_taken_and_kept_for_the_next_one() -> None:
    gains = {2048: 0.8, 4096: 1.2, 8192: 1.0}
    outcome, started = run([BATCHED, DRAFTS], engine(lambda v: 100 * gains[int(v["batched_tokens"] or 0)]))
    assert outcome.chosen == {"batched_tokens": 4096, "speculative_tokens": 4}
    now = [value["batched_tokens"] for value in started]
    assert now == [8192, 2048, 4096, 4096, 8192, 4096, 4096, 4096], "once more the best, then as it is; then on with it"
    found = says(outcome)
    assert (found[2048], found[4096], found[2], found[6]) == (Says.WORSE, Says.BETTER, Says.SAME, Says.SAME)
    better = next(one for one in outcome.verdicts if one.says is Says.BETTER)
    assert better.change is not None and better.change.low < 0.2 < better.change.high
    assert outcome.starts == len(started) <= most_starts([BATCHED, DRAFTS])


def test_what_cannot_be_told_from_noise_keeps_what_is_there() -> None:
    taken = 0
    for seed in range(100):
        outcome, _ = run([BATCHED, DRAFTS], engine(lambda v: 100.0, noise=0.05, seed=seed))
        taken += outcome.chosen != {"batched_tokens": 8192, "speculative_tokens": 4}
    assert taken <= 3


def test_a_box_that_gets_faster_or_slower_meanwhile_makes_no_setting_better() -> None:
    for drift in (0.02, -0.02):
        outcome, _ = run([BATCHED], engine(lambda v: 100.0, noise=0.002, drift=drift))
        assert outcome.chosen == {"batched_tokens": 8192}
        assert Says.BETTER not in says(outcome).values()


def test_one_that_does_not_start_is_named_and_skipped_and_so_is_one_that_was_known_not_to_fit() -> None:
    setting = Setting("memory_share", 0.7, (0.75, 0.8), {0.95: "more than the reserve leaves"})

    def start(values: Values, number: int) -> Started:
        if values["memory_share"] == 0.8:
            return Started(dict(values), why="it did not start: out of memory")
        return engine(lambda v: 100.0, seed=number)(values, number)

    outcome, started = run([setting], start)
    assert outcome.chosen == {"memory_share": 0.7} and len(started) == 3
    whys = {one.value: one.why for one in outcome.verdicts if one.says is Says.NOT}
    assert whys == {0.8: "it did not start: out of memory", 0.95: "more than the reserve leaves"}


def test_an_engine_that_cannot_be_measured_as_it_is_ends_the_search_of_a_setting() -> None:
    outcome, started = run([BATCHED], lambda values, number: Started(dict(values), why="no answer"))
    assert len(started) == 1 and set(says(outcome).values()) == {Says.NOT}
    assert all("as it is now: no answer" in one.why for one in outcome.verdicts)


def test_nothing_to_try_starts_nothing() -> None:
    with pytest.raises(StopIteration) as end:
        next(search([Setting("memory_share", 0.7, (), {0.9: "too much"})]))
    assert end.value.value.starts == 0 and most_starts([Setting("memory_share", 0.7, ())]) == 0


def test_an_outcome_is_the_same_after_its_json() -> None:
    outcome, _ = run([BATCHED, DRAFTS], engine(lambda v: 100 + (v["batched_tokens"] or 0) / 100))
    assert from_record(json.loads(json.dumps(as_record(outcome)))) == outcome
    assert statistics.fmean([one.rate or 0 for one in outcome.verdicts]) > 0
