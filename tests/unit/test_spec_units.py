"""Sizes and durations are read as people write them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.spec.units import parse_duration, parse_size

SIZES = [
    ("71GiB", 71 * 1024**3),
    ("128 GB", 128 * 1000**3),
    ("1.5tib", 3 * 1024**4 // 2),
    ("12", 12),
    (7, 7),
    ("0B", 0),
]
DURATIONS = [("250ms", 0.25), ("90s", 90), ("15m", 900), ("2 min", 120), ("1h", 3600), (3, 3), (0.5, 0.5), ("7", 7)]


@pytest.mark.parametrize(("written", "size"), SIZES)
def test_a_size_is_read_in_bytes(written: Any, size: int) -> None:
    assert parse_size(written) == size


@pytest.mark.parametrize(("written", "duration"), DURATIONS)
def test_a_duration_is_read_in_seconds(written: Any, duration: float) -> None:
    assert parse_duration(written) == duration


def test_a_size_with_half_a_unit_gets_the_whole_one_as_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r"did you mean 71GiB\?"):
        parse_size("71G")


@pytest.mark.parametrize("parse", [parse_size, parse_duration])
@given(
    value=st.one_of(
        st.text(), st.integers(), st.floats(), st.booleans(), st.none(), st.lists(st.text()), st.just("9" * 400 + "TiB")
    )
)
def test_whatever_is_written_is_a_number_in_range_or_refused(parse: Any, value: Any) -> None:
    try:
        number = parse(value)
    except ValueError:
        return
    assert 0 <= number < 2**64
