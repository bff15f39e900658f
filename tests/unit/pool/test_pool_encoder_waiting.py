"""Which inputs make the next batch: whose turn it is, and what goes with it at little cost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleetctl.pool.encoder.waiting import Input, Waiting


def inputs(*lengths: int, owner: str = "a") -> list[Input]:
    return [Input(range(length), owner, index, 0.0) for index, length in enumerate(lengths)]


def shape(batch: list[Input]) -> list[int]:
    return [len(one.tokens) for one in batch]


@given(
    requests=st.lists(st.lists(st.integers(1, 600), min_size=1, max_size=20), max_size=8),
    most=st.integers(1, 1000),
    start=st.integers(0, 50),
)
def test_every_input_comes_once_in_batches_that_keep_to_their_limits(
    requests: list[list[int]], most: int, start: int
) -> None:
    waiting = Waiting(start)
    for number, lengths in enumerate(requests):
        waiting.add(inputs(*lengths, owner=str(number)))
    seen = []
    while batch := waiting.take(most):
        sizes = shape(batch)
        assert len(batch) == 1 or max(sizes) * len(batch) <= most
        assert max(sizes) * len(batch) - sum(sizes) <= start * (len(batch) - 1)
        seen += [(one.owner, one.index) for one in batch]
    assert sorted(seen) == sorted((str(n), i) for n, lengths in enumerate(requests) for i in range(len(lengths)))
    assert waiting.tokens == 0


def test_inputs_of_like_length_go_together() -> None:
    waiting = Waiting(start=8)
    waiting.add(inputs(10, 100, 11, 102, 12, 104))
    assert shape(waiting.take(1000)) == [10, 11, 12]
    assert shape(waiting.take(1000)) == [100, 102, 104]
    assert waiting.take(1000) == []


def test_an_input_that_is_longer_than_a_batch_is_one_of_its_own() -> None:
    waiting = Waiting(start=8)
    waiting.add(inputs(500, 500))
    assert [shape(waiting.take(100)) for _ in range(3)] == [[500], [500], []]


def test_a_small_request_does_not_wait_for_all_of_a_large_one() -> None:
    waiting = Waiting(start=0)
    waiting.add(inputs(*[50] * 100, owner="large"))
    assert {one.owner for one in waiting.take(500)} == {"large"}
    waiting.add(inputs(7, owner="small"))
    coming = [{one.owner for one in waiting.take(500)} for _ in range(2)]
    assert {"small"} in coming


def test_inputs_whose_client_has_gone_are_not_computed() -> None:
    waiting = Waiting(start=8)
    gone, kept = inputs(10, 10, 300), inputs(10, owner="b")
    waiting.add(gone)
    waiting.add(kept)
    waiting.drop(gone)
    assert waiting.tokens == 10
    assert waiting.take(1000) == kept
    assert waiting.take(1000) == []
